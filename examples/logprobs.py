"""How likely each token of an answer was, and what else was likely in its place.

Run `make run` in one terminal and `.venv/bin/python examples/logprobs.py` in another.
"""

import argparse
import math

from pagewire import Client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--address", default="127.0.0.1:50050")
    arguments = parser.parse_args()
    with Client(arguments.address) as client:
        output = client.generate(arguments.prompt, temperature=0, max_tokens=8, logprobs=3)
    for place in output.outputs[0].logprobs or ():
        others = "  ".join(
            f"{token.decoded_token!r} {math.exp(token.logprob):.0%}" for token in place.top
        )
        token = place.token
        print(f"{token.decoded_token!r:>14} {math.exp(token.logprob):>5.0%}   top: {others}")


if __name__ == "__main__":
    main()
