"""`pagewire bench`: the command's entry; `serve` is what there is to bench."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import uvloop

from pagewire.cli.bench.arrivals import arrival_times
from pagewire.cli.bench.config import Backend, BenchServeConfig, LoadFlags, ServerFlags
from pagewire.cli.bench.driver import Driver
from pagewire.cli.bench.figures import Figures, figures_of
from pagewire.cli.bench.grpc_target import GrpcTarget
from pagewire.cli.bench.model_name import first_model
from pagewire.cli.bench.openai_target import OpenAITarget
from pagewire.cli.bench.record import BenchRequestError, Job, Target
from pagewire.cli.bench.report import to_json, to_text
from pagewire.cli.bench.trace import read_trace
from pagewire.cli.bench.workload import RandomWorkload
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.errors import ServiceUnavailableError

_NUM_RANDOM = 100
_USAGE = "pagewire bench serve [flags]: see pagewire bench serve --help"


def run(arguments: Sequence[str]) -> int:
    """Run the command; 1: a request failed."""
    name, *flags = arguments or [""]
    if name in ("-h", "--help"):
        print(_USAGE)
        return 0
    if name != "serve":
        raise ConfigError(f"{' '.join(('bench', name)).strip()}: there is only {_USAGE}")
    config = load_config(BenchServeConfig, prog="pagewire bench serve", argv=flags)
    jobs = make_jobs(config.load, as_text=_needs_text(config))
    figures = uvloop.run(bench_serve(config, jobs))
    print(to_text(figures))
    if config.result.output_file is not None:
        _write(config.result.output_file, to_json(figures, _settings(config)))
    return 1 if figures.num_failed else 0


def make_jobs(load: LoadFlags, *, as_text: bool) -> list[Job]:
    """Return the requests of a run.

    Raises:
        ConfigError: A file cannot be read.
    """
    if load.dataset_path is not None:
        return read_trace(load.dataset_path, load.num_prompts, load.trace_speed)
    rng = random.Random(load.seed)
    workload = RandomWorkload(
        num_requests=load.num_prompts or _NUM_RANDOM,
        input_len=load.random_input_len,
        output_len=load.random_output_len,
        prefix_len=load.random_prefix_len,
        num_prefixes=load.random_num_prefixes,
        range_ratio=load.random_range_ratio,
        as_text=as_text,
    )
    return workload.jobs(arrival_times(load.request_rate, load.burstiness, rng), rng)


async def bench_serve(config: BenchServeConfig, jobs: Sequence[Job]) -> Figures:
    """Warm up, run the jobs and return what came of them.

    Raises:
        ConfigError: The server's address is none, or a prompt has not the form that it takes.
        ServiceUnavailableError: It does not answer.
    """
    needs_text = config.server.backend is Backend.OPENAI_CHAT
    if needs_text and not all(isinstance(job.prompt, str) for job in jobs):
        raise ConfigError("--backend openai-chat: prompts must be text, the file has token ids")
    try:
        target = await _open(config.server)
    except ValueError as exc:
        raise ConfigError(str(exc.args[-1])) from exc
    try:
        warm_up = Driver(target, 1)
        records, _ = await warm_up.run(_warm_ups(config.load, jobs))
        if records and records[0].error:
            raise ServiceUnavailableError(f"the first request failed: {records[0].error}")
        records, duration_s = await Driver(target, config.load.max_concurrency).run(jobs)
    finally:
        await target.close()
    result = config.result
    return figures_of(records, duration_s, result.metric_percentiles, result.objectives)


async def _open(server: ServerFlags) -> Target:
    if server.backend is Backend.GRPC:
        return GrpcTarget(
            server.target,
            server.model or "",
            ignore_eos=server.ignore_eos,
            api_key=server.api_key,
            timeout_s=server.request_timeout_s,
            tls=server.tls.peer(),
        )
    try:
        model = server.model or await first_model(server.base_url, server.api_key)
    except BenchRequestError as exc:
        raise ServiceUnavailableError(f"{server.base_url}: {exc}") from exc
    return OpenAITarget(
        server.base_url,
        model,
        is_chat=server.backend is Backend.OPENAI_CHAT,
        ignore_eos=server.ignore_eos,
        extra_body=server.more_fields,
        api_key=server.api_key,
        timeout_s=server.request_timeout_s,
    )


def _warm_ups(load: LoadFlags, jobs: Sequence[Job]) -> list[Job]:
    """Return requests like those of the run, with prompts that none of it has."""
    length = max(1, min(load.num_warmups, len(jobs)))
    return [Job(_reversed(job.prompt), job.max_tokens) for job in jobs[:length][: load.num_warmups]]


def _reversed(prompt: str | Sequence[int]) -> str | Sequence[int]:
    return " ".join(reversed(prompt.split())) if isinstance(prompt, str) else prompt[::-1]


def _needs_text(config: BenchServeConfig) -> bool:
    return config.load.text_prompts or config.server.backend is Backend.OPENAI_CHAT


def _settings(config: BenchServeConfig) -> dict[str, object]:
    settings = asdict(config)
    settings["server"]["api_key"] = None
    return settings


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--output-file {path}: {exc.strerror or exc}") from exc
