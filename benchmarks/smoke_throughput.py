"""A short load test: N streams at a time, what they got, and how long they waited for it.

    python benchmarks/smoke_throughput.py --target 127.0.0.1:50050 --concurrency 8
    python benchmarks/smoke_throughput.py --start-stack -- --dtype float32

Prompts are new random token ids each time, so that the prefix cache never helps by accident;
decoding is greedy and runs past end-of-sequence, so that every request has the same length. The
client shares the machine with the server when that is local. One run is no measurement: these
figures say whether something is badly wrong, comparisons need interleaved runs.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from pagewire import __version__
from pagewire.cli.own_stack import own_stack
from pagewire.kit.channels import open_channel
from pagewire.kit.machine import describe_machine
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc

FIRST_TOKEN_ID, END_TOKEN_ID = 1000, 40_000


@dataclass(slots=True)
class Stream:
    """What one request saw; times in seconds of the same clock."""

    started_s: float
    arrivals_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_cached: int = 0


async def run_stream(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub, prompt: list[int], output_len: int
) -> Stream:
    request = inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingOptions(temperature=0),
        stopping=inference_pb2.StoppingOptions(max_tokens=output_len, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )
    stream = Stream(time.perf_counter())
    async for response in stub.Generate(request):
        if response.WhichOneof("event") == "delta":
            # A delta may have no text (half a character) or several tokens (merged).
            stream.arrivals_s += [time.perf_counter()] * len(response.delta.token_ids)
        elif response.WhichOneof("event") == "usage":
            stream.num_tokens = response.usage.completion_tokens
            stream.num_cached = response.usage.cached_tokens
    return stream


async def run_load(target: str, options: argparse.Namespace) -> tuple[list[Stream], float]:
    """Return the streams and the seconds from the first start to the last end."""
    rng = random.Random(options.seed)
    prompts = [
        [rng.randrange(FIRST_TOKEN_ID, END_TOKEN_ID) for _ in range(options.prompt_len)]
        for _ in range(options.requests + 1)
    ]
    places = asyncio.Semaphore(options.concurrency)
    async with open_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await run_stream(stub, prompts.pop(), options.output_len)  # warm-up

        async def run_in_turn(prompt: list[int]) -> Stream:
            async with places:
                return await run_stream(stub, prompt, options.output_len)

        start = time.perf_counter()
        streams = await asyncio.gather(*map(run_in_turn, prompts))
        return streams, time.perf_counter() - start


def report(streams: list[Stream], wall_s: float, options: argparse.Namespace) -> dict[str, object]:
    first_ms = [1e3 * (s.arrivals_s[0] - s.started_s) for s in streams]
    gaps_ms = [
        1e3 * (after - before)
        for s in streams
        for before, after in zip(s.arrivals_s, s.arrivals_s[1:], strict=False)
    ]
    num_tokens = sum(s.num_tokens for s in streams)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "pagewire": __version__,
        "concurrency": options.concurrency,
        "requests": len(streams),
        "prompt_len": options.prompt_len,
        "output_len": options.output_len,
        "serve_flags": options.serve_flags if options.start_stack else None,
        "wall_s": round(wall_s, 3),
        "output_tokens_per_s": round(num_tokens / wall_s, 1),
        "total_tokens_per_s": round((num_tokens + options.prompt_len * len(streams)) / wall_s, 1),
        "cached_tokens": sum(s.num_cached for s in streams),
        "ttft_ms": percentiles(first_ms),
        "itl_ms": percentiles(gaps_ms),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and the maximum; nothing for fewer than two values."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p95": round(cuts[94], 2), "max": round(max(values), 2)}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="127.0.0.1:50050", help="gRPC address of a gateway")
    parser.add_argument("--start-stack", action="store_true", help="start a stack and end it after")
    parser.add_argument("--model", default="smollm2", help="with --start-stack")
    parser.add_argument("--concurrency", type=int, default=8, help="streams at a time")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens")
    parser.add_argument("--output-len", type=int, default=64, help="tokens")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts")
    parser.add_argument("serve_flags", nargs="*", help="after --: flags of `pagewire serve`")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    if options.start_stack:
        with own_stack(options.model, *options.serve_flags) as target:
            streams, wall_s = asyncio.run(run_load(target, options))
    else:
        try:
            streams, wall_s = asyncio.run(run_load(options.target, options))
        except grpc.aio.AioRpcError as exc:
            raise SystemExit(f"error: {options.target}: {exc.details()}") from exc
    print(json.dumps(report(streams, wall_s, options), indent=2))


if __name__ == "__main__":
    main()
