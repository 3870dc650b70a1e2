"""Two chats at once over gRPC, each streamed as it comes, in one asyncio program.

Run `make run` in one terminal and `.venv/bin/python examples/stream_async.py` in another. Each
line begins with the chat that it belongs to; the counts at the end are what the model was asked
and what it answered, in tokens.
"""

import argparse
import asyncio

from pagewire import AsyncClient

QUESTIONS = ("Name three colours.", "Name three animals.")


async def ask(client: AsyncClient, number: int, question: str) -> None:
    """Stream one answer; leaving the `with` early would abort the request."""
    async with client.chat_stream(question, temperature=0.7, seed=number, max_tokens=24) as stream:
        async for delta in stream:
            if delta.text:
                print(f"[{number}] {delta.text!r}")
    usage = stream.usage
    print(f"[{number}] {usage.prompt_tokens} tokens in, {usage.completion_tokens} tokens out")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:50050")
    arguments = parser.parse_args()
    async with AsyncClient(arguments.address) as client:
        await asyncio.gather(*(ask(client, n, q) for n, q in enumerate(QUESTIONS, start=1)))


if __name__ == "__main__":
    asyncio.run(main())
