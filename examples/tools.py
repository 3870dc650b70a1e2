"""A tool: the model calls a Python function, gets its result, and answers with it.

Run `make run` in one terminal and `.venv/bin/python examples/tools.py` in another. The call is
forced here (`tool_choice="required"`), since the embedded model is too small to choose well; its
arguments keep to the schema in any case. Leave it out with a model that was trained for tools.
"""

import argparse
import json

from pagewire import ChatMessage, Client, Tool

WEATHER = Tool(
    name="get_weather",
    description="The weather in a city now.",
    parameters={
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


def get_weather(city: str) -> str:
    """Stand in for a real service."""
    return json.dumps(
        {"city": city, "sky": "clear", "celsius": {"Paris": 21, "Rome": 27}.get(city, 4)}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:50050")
    arguments = parser.parse_args()
    conversation = [ChatMessage("user", "What is the weather in Paris?")]
    with Client(arguments.address) as client:
        asked = client.chat(
            conversation,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=100,
        )
        (call,) = asked.outputs[0].tool_calls
        print("call:  ", call.name, call.arguments)
        result = get_weather(**json.loads(call.arguments))
        print("result:", result)
        conversation += [
            ChatMessage("assistant", tool_calls=[call]),
            ChatMessage("tool", result, tool_call_id=call.id),
        ]
        answer = client.chat(
            conversation, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=40
        )
        print("answer:", answer.text)


if __name__ == "__main__":
    main()
