"""Offline work: many prompts in one call, with a stack that starts and ends with the program.

Run `.venv/bin/python examples/offline_llm.py`; nothing else has to run. The answers come in the
order of the prompts, whatever the engine computed first.
"""

import argparse

from pagewire import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto", help="sim: the simulated worker")
    arguments = parser.parse_args()
    prompts = [f"{number} and {number} is" for number in range(1, 21)]
    with LLM(model=arguments.model, device=arguments.device, max_model_len=512) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    for output in outputs:
        print(f"{output.prompt!r}: {output.outputs[0].text!r}")
    print(sum(output.usage.completion_tokens for output in outputs), "tokens")


if __name__ == "__main__":
    main()
