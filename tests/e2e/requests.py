"""Requests to a stack on the simulated worker, and what each must get when it runs alone."""

from __future__ import annotations

import asyncio
import random

from pagewire.sampling_params import SamplingParams
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from worker_svc.sim.oracle import expected_tokens
from worker_svc.sim.sampling import SimVocabulary

SIM_VOCABULARY = SimVocabulary(49_152, (2,))
TIMEOUT_S = 600.0
"""Of one request: a machine that is shared may be very slow; the tests have bounds of their own."""


def sim_request(
    rng: random.Random, number: int, max_tokens: int | None = None
) -> inference_pb2.GenerateRequest:
    """A request with a prompt of 1 to 60 tokens, half of them with a prefix in common."""
    prefix = [7] * rng.choice([0, 32])
    prompt = prefix + [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 60))]
    max_tokens = max_tokens or rng.randint(1, 40)
    return inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingOptions(temperature=rng.choice([0.0, 1.0]), seed=number),
        stopping=inference_pb2.StoppingOptions(max_tokens=max_tokens, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )


def alone(request: inference_pb2.GenerateRequest) -> list[int]:
    """The tokens that the request gets when nothing else runs, from the oracle."""
    params = SamplingParams(
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        max_tokens=request.stopping.max_tokens,
        ignore_eos=True,
    )
    num_tokens = request.stopping.max_tokens
    return expected_tokens(list(request.token_ids.ids), params, num_tokens, SIM_VOCABULARY)


async def generate(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
    request: inference_pb2.GenerateRequest,
    first_token: asyncio.Event | None = None,
) -> list[int]:
    """Run a request to its end; says when its first token is there. Returns all token ids."""
    token_ids: list[int] = []
    async for event in stub.Generate(request, timeout=TIMEOUT_S):
        token_ids.extend(event.delta.token_ids)
        if token_ids and first_token is not None:
            first_token.set()
    return token_ids
