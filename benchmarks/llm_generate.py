"""`LLM.generate` against the same prompts over HTTP: how long 1,000 of them take each way.

    python benchmarks/llm_generate.py
    python benchmarks/llm_generate.py --prompts 200 -- --model smollm2

Both ask the same stack, in rounds, one after the other in changing order, and must get the same
texts. HTTP is asked with one prompt a request on kept connections by a client that does nothing but
that, at the concurrency that was best in a first sweep; and, as a third way, with lists of prompts
in a request, which is HTTP's own form of a batch. Decoding is greedy and runs past end-of-sequence,
so that all requests have the same length; the prefix cache is off, so that nobody gains by coming
second. Ratios are HTTP's figure by LLM's: above 1, LLM took less. CPU seconds are those of all
processes, this client's included; they say more than time does on a machine that others use.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from pagewire import LLM, SamplingParams, __version__
from pagewire.cli.own_stack import OwnStack, start_own_stack
from pagewire.kit.machine import describe_machine

Ask = Callable[[list[str]], list[str]]

RESULTS = Path(__file__).resolve().parent / "results"
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "state")


class Connection:
    """One kept HTTP/1.1 connection that posts JSON."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        headers = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(headers.split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if not headers.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the server answered {answer!r}")
        return dict(json.loads(answer))


async def ask_http(
    url: str, prompts: Sequence[str], max_tokens: int, concurrency: int, per_request: int
) -> list[str]:
    """Return the texts of all prompts, asked on `concurrency` connections."""
    texts = [""] * len(prompts)
    todo = iter(range(0, len(prompts), per_request))

    async def work() -> None:
        async with Connection(url) as connection:
            for start in todo:
                part = list(prompts[start : start + per_request])
                body: dict[str, object] = {
                    "prompt": part if per_request > 1 else part[0],
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                }
                answer = await connection.post("/v1/completions", body)
                for choice in answer["choices"]:  # type: ignore[attr-defined]
                    texts[start + choice["index"]] = choice["text"]

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return texts


def ask_llm(llm: LLM, prompts: Sequence[str], max_tokens: int) -> list[str]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return [output.text for output in llm.generate(prompts, params, use_tqdm=False)]


@dataclass(slots=True)
class Clock:
    """Measures calls: seconds that pass, and CPU seconds of this process and the stack's."""

    stack: psutil.Process

    def time(self, ask: Ask, prompts: list[str]) -> tuple[float, float, list[str]]:
        cpu_s, start_s = self._cpu_s(), time.perf_counter()
        texts = ask(prompts)
        return time.perf_counter() - start_s, self._cpu_s() - cpu_s, texts

    def _cpu_s(self) -> float:
        processes = [psutil.Process(), self.stack, *self.stack.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def by_http(url: str, max_tokens: int, concurrency: int, per_request: int = 1) -> Ask:
    return lambda prompts: asyncio.run(ask_http(url, prompts, max_tokens, concurrency, per_request))


def make_prompts(rng: random.Random, number: int, num_words: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=num_words)) for _ in range(number)]


def best_concurrency(
    clock: Clock, url: str, prompts: list[str], options: argparse.Namespace
) -> int:
    """Return the number of connections that took the least time."""
    seconds: dict[int, float] = {}
    concurrencies: list[int] = options.concurrencies
    for concurrency in concurrencies:
        ask = by_http(url, options.max_tokens, concurrency)
        seconds[concurrency], _, _ = clock.time(ask, prompts)
        print(f"  http, {concurrency} connections: {seconds[concurrency]:.2f} s", flush=True)
    return min(seconds, key=lambda concurrency: seconds[concurrency])


def run_round(
    clock: Clock, ways: Mapping[str, Ask], names: Sequence[str], prompts: list[str]
) -> dict[str, dict[str, float]]:
    """Return the figures of each way, asked in the order of the names."""
    figures: dict[str, dict[str, float]] = {}
    answers = []
    for name in names:
        wall_s, cpu_s, texts = clock.time(ways[name], prompts)
        figures[name] = {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}
        answers.append(texts)
    if any(texts != answers[0] for texts in answers):
        raise RuntimeError("the ways gave different texts")
    return figures


def run_rounds(
    stack: OwnStack, llm: LLM, options: argparse.Namespace
) -> tuple[int, list[dict[str, dict[str, float]]]]:
    """Return HTTP's best concurrency, and the figures of each way in each round."""
    rng = random.Random(options.seed)
    clock = Clock(psutil.Process(stack.process.pid))
    url, max_tokens = stack.http_url, options.max_tokens
    warm_up = make_prompts(rng, options.prompts, options.prompt_words)
    ask_llm(llm, warm_up, max_tokens)
    concurrency = best_concurrency(clock, url, warm_up, options)
    ways: dict[str, Ask] = {
        "llm": lambda prompts: ask_llm(llm, prompts, max_tokens),
        "http": by_http(url, max_tokens, concurrency),
        "http_lists": by_http(url, max_tokens, 8, options.list_length),
    }
    rounds = []
    for number in range(options.rounds):
        prompts = make_prompts(rng, options.prompts, options.prompt_words)
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        rounds.append(run_round(clock, ways, names, prompts))
        print(f"  round {number + 1}: {rounds[-1]}", flush=True)
    return concurrency, rounds


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--prompt-words", type=int, default=32, help="about a token each")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--list-length", type=int, default=64, help="prompts in a list over HTTP")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts")
    parser.add_argument("--name", help="write benchmarks/results/llm_generate-NAME-DATE.json")
    parser.add_argument(
        "serve_flags", nargs="*", help="after --: flags of `pagewire serve`; default: --device=sim"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    flags = options.serve_flags or ["--device=sim"]
    stack_flags = [*flags, "--no-enable-prefix-caching", "--grpc-transport=uds"]
    with start_own_stack(stack_flags) as stack, LLM(address=stack.target) as llm:
        concurrency, rounds = run_rounds(stack, llm, options)
    today = datetime.datetime.now(datetime.UTC)
    result = {
        "date": today.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": os.getloadavg(),
        "pagewire": __version__,
        "serve_flags": stack_flags,
        "prompts": options.prompts,
        "prompt_words": options.prompt_words,
        "max_tokens": options.max_tokens,
        "http_concurrency": concurrency,
        "median_ratios_to_llm": {
            way: {figure: median_ratio(rounds, way, figure) for figure in ("wall_s", "cpu_s")}
            for way in ("http", "http_lists")
        },
        "rounds": rounds,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.name:
        file = RESULTS / f"llm_generate-{options.name}-{today:%Y-%m-%d}.json"
        file.write_text(text + "\n", encoding="utf-8")
    return 0


def median_ratio(rounds: list[dict[str, dict[str, float]]], way: str, figure: str) -> float:
    """Return how much more of it HTTP took than LLM."""
    ratios = [each[way][figure] / each["llm"][figure] for each in rounds]
    return round(statistics.median(ratios), 3)


if __name__ == "__main__":
    sys.exit(main())
