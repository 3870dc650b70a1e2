"""How close a choice of the embedded model was, by transformers: what decides about near-ties.

As a script it reads requests and their outputs up to the choice from standard input, in a process
of its own: transformers warns, and keeps half a gigabyte.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import torch

from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest
from tests.worker_svc.sampler.reference import exp, truncate
from worker_svc.sampler.philox import uniforms

TIMEOUT_S = 300.0


def smollm2_gap(request: TokenRequest, output: Sequence[int]) -> float:
    """`gap` of the choice that follows `output`, from a float32 forward pass of the whole."""
    params = request.params
    task = {
        "token_ids": [*request.prompt, *output],
        "output_index": len(output),
        "params": {"temperature": params.temperature, "top_p": params.top_p, "seed": params.seed},
    }
    answer = subprocess.run(
        [sys.executable, "-m", "tests.e2e.closeness"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return float(answer.stdout)


def gap(logits: torch.Tensor, params: SamplingParams, output_index: int) -> float:
    """How close the choice was to another one.

    Args:
        logits: [vocab_size] float32, of the model.
        params: Temperature, top_p and seed count.
        output_index: Number of output tokens before the choice.

    Returns:
        Greedy: the best logit minus the second best. Sampled: distance of the uniform to the
        nearest edge of the CDF of the surviving tokens, in [0, 1].
    """
    if params.is_greedy:
        best = logits.topk(2).values
        return float(best[0] - best[1])
    kept = truncate(logits.numpy(), params)
    cumulative = exp(kept - kept.max()).astype(np.float64).cumsum()
    edges = np.concatenate(([0.0], cumulative)) / cumulative[-1]
    seeds = np.array([params.seed], dtype=np.uint64)
    (uniform,) = uniforms(seeds, np.array([output_index], dtype=np.uint64)).tolist()
    return float(np.abs(edges - uniform).min())


def main() -> None:
    from tests.worker_svc.reference import _load_smollm2

    task = json.load(sys.stdin)
    with torch.inference_mode():
        logits = _load_smollm2()(torch.tensor([task["token_ids"]])).logits[0, -1].float()
    params = SamplingParams(**task["params"]).normalized()
    print(gap(logits, params, task["output_index"]))


if __name__ == "__main__":
    main()
