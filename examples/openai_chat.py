"""A chat with OpenAI's client: a whole answer, then the same one as a stream.

Run `make run` in one terminal and `.venv/bin/python examples/openai_chat.py` in another. It needs
the package `openai`; any other client of OpenAI's API works the same way.
"""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()
    client = OpenAI(base_url=arguments.base_url, api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": arguments.question}]

    answer = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=40
    )
    print("whole: ", answer.choices[0].message.content)

    stream = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=40, stream=True
    )
    print("stream:", end=" ")
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
