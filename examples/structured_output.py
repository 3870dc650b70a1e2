"""Answers with a form: an object by a JSON schema, one of some choices, a date by a regex.

Run `make run` in one terminal and `.venv/bin/python examples/structured_output.py` in another.
Whatever the model would rather say, the forms hold: the object parses, and has the schema's keys.
"""

import argparse
import json

from pagewire import Client, StructuredOutputs

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
        "population_in_millions": {"type": "integer", "minimum": 0, "maximum": 40},
    },
    "required": ["name", "continent", "population_in_millions"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:50050")
    arguments = parser.parse_args()
    with Client(arguments.address) as client:

        def ask(question: str, form: StructuredOutputs) -> str:
            return client.chat(
                question, temperature=0, max_tokens=200, structured_outputs=form
            ).text

        city = json.loads(ask("Describe Paris.", StructuredOutputs(json_schema=json.dumps(CITY))))
        print("object:", city)
        choices = ("positive", "negative")
        print("choice:", ask("'I love it.' Which mood is this?", StructuredOutputs(choice=choices)))
        date = StructuredOutputs(regex=r"[12]\d{3}-[01]\d-[0-3]\d")
        print("regex: ", ask("When did the Berlin Wall fall?", date))


if __name__ == "__main__":
    main()
