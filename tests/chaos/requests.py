"""Requests of every kind, made from a seed."""

from __future__ import annotations

import random

from pagewire.v1 import common_pb2, inference_pb2

Request = inference_pb2.GenerateRequest

SCHEMA = (
    '{"type": "array", "minItems": 60, "maxItems": 60,'
    ' "items": {"type": "integer", "minimum": 100, "maximum": 999}}'
)


def mixed_requests(seed: int, number: int, max_tokens: int) -> list[Request]:
    """Greedy, sampled, with penalties, a schema, n = 2, logprobs, stop strings: in turns."""
    rng = random.Random(seed)
    makers = (_greedy, _sampled, _penalized, _schema, _twins, _logprobs, _stopping, _salted)
    requests = []
    for index in range(number):
        request = _plain(rng, index, max_tokens)
        makers[index % len(makers)](request)
        requests.append(request)
    return requests


def _plain(rng: random.Random, index: int, max_tokens: int) -> Request:
    """A prompt of ids, or of text, which must be tokenized first; half share a beginning."""
    prompt = [7] * rng.choice([0, 48])
    prompt += [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 90))]
    request = Request(
        sampling=inference_pb2.SamplingOptions(temperature=1.0, seed=index),
        stopping=inference_pb2.StoppingOptions(max_tokens=max_tokens, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )
    if index % 4 == 1:
        request.text = " ".join(map(str, prompt[-20:]))
    else:
        request.token_ids.CopyFrom(common_pb2.TokenIds(ids=prompt))
    return request


def _greedy(request: Request) -> None:
    request.sampling.temperature = 0.0


def _sampled(request: Request) -> None:
    request.sampling.top_p = 0.9


def _penalized(request: Request) -> None:
    request.sampling.presence_penalty = 0.5
    request.sampling.frequency_penalty = 0.5
    request.sampling.repetition_penalty = 1.2


def _schema(request: Request) -> None:
    request.response.structured_outputs.json_schema = SCHEMA
    request.stopping.ignore_eos = False


def _twins(request: Request) -> None:
    request.sampling.n = 2


def _logprobs(request: Request) -> None:
    request.response.logprobs = 2


def _stopping(request: Request) -> None:
    request.stopping.stop.extend(["qu", "never there"])


def _salted(request: Request) -> None:
    """Shares cached prefixes with its own repetitions only."""
    request.cache.salt = f"salt {request.sampling.seed}"
