"""Prompts, lengths and times of what is asked."""

from __future__ import annotations

import json
import random
import statistics
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from pagewire.cli.bench.arrivals import arrival_times
from pagewire.cli.bench.record import Job
from pagewire.cli.bench.trace import HASH_BLOCK_TOKENS, read_trace
from pagewire.cli.bench.workload import RandomWorkload
from pagewire.kit.config import ConfigError


def make_jobs(seed: int = 0, **settings: Any) -> list[Job]:
    values = {"num_requests": 6, "input_len": 20, "output_len": 8, **settings}
    rng = random.Random(seed)
    return RandomWorkload(**values).jobs(arrival_times(None, 1.0, rng), rng)


def test_prompts_have_their_lengths_and_share_what_they_are_to_share() -> None:
    jobs = make_jobs(prefix_len=5, num_prefixes=2)
    assert [(len(job.prompt), job.max_tokens, job.due_s) for job in jobs] == [(25, 8, 0.0)] * 6
    prefixes = [tuple(job.prompt[:5]) for job in jobs]
    assert prefixes == [prefixes[0], prefixes[1]] * 3
    assert len(set(prefixes)) == 2
    assert len({tuple(job.prompt[5:]) for job in jobs}) == 6


def test_a_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert make_jobs(seed=1) == make_jobs(seed=1)
    assert make_jobs(seed=1) != make_jobs(seed=2)


def test_lengths_are_drawn_within_their_range() -> None:
    jobs = make_jobs(num_requests=300, range_ratio=0.5)
    lengths = {len(job.prompt) for job in jobs}
    assert (min(lengths), max(lengths)) == (10, 30)
    assert {job.max_tokens for job in jobs} == set(range(4, 13))


def test_text_has_a_word_for_each_token() -> None:
    prompt = make_jobs(as_text=True, prefix_len=3)[0].prompt
    assert isinstance(prompt, str)
    assert len(prompt.split()) == 23


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (100.0, 0.1)])
def test_gaps_have_their_mean_and_spread(burstiness: float, variation: float) -> None:
    times = list(islice(arrival_times(50.0, burstiness, random.Random(3)), 20_001))
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    spread = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert spread == pytest.approx(variation, rel=0.05)


def write_trace(folder: Path, *lines: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_a_trace_is_replayed_in_order_from_its_first_request(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path,
        {"timestamp": 3000, "prompt": "late", "max_tokens": 2},
        {"timestamp": 1000, "prompt": [5, 6], "max_tokens": 3},
    )
    jobs = [Job([5, 6], 3, 0.0), Job("late", 2, 2.0)]
    assert read_trace(path) == jobs
    assert [job.due_s for job in read_trace(path, speed=4.0)] == [0.0, 0.5]
    assert read_trace(path, max_requests=1) == [Job("late", 2, 0.0)]


def test_blocks_of_one_id_have_the_same_tokens(tmp_path: Path) -> None:
    length = HASH_BLOCK_TOKENS + 100
    lines = [
        {"input_length": length, "output_length": 4, "hash_ids": ids}
        for ids in ([1, 2], [1, 3], [1, 2])
    ]
    path = write_trace(tmp_path, *lines, {"input_length": length, "output_length": 4})
    prompts = [tuple(job.prompt) for job in read_trace(path)]
    assert {len(prompt) for prompt in prompts} == {length}
    first, second, third, apart = prompts
    assert first == third
    assert first[:HASH_BLOCK_TOKENS] == second[:HASH_BLOCK_TOKENS]
    assert first[HASH_BLOCK_TOKENS:] != second[HASH_BLOCK_TOKENS:]
    assert apart[:HASH_BLOCK_TOKENS] != first[:HASH_BLOCK_TOKENS]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ([], "must be a JSON object"),
        ({"prompt": "a"}, "max_tokens must be"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be"),
        ({"prompt": "", "max_tokens": 1}, "prompt must be"),
        ({"prompt": [1, -1], "max_tokens": 1}, "prompt must be"),
        ({"prompt": [True], "max_tokens": 1}, "prompt must be"),
        ({"prompt": "a", "max_tokens": 1, "timestamp": -1}, "timestamp must be"),
        ({"prompt": "a", "max_tokens": 1, "timestamp": "1"}, "timestamp must be"),
        ({"output_length": 1}, "needs prompt, or input_length"),
        ({"input_length": 0, "output_length": 1}, "needs prompt, or input_length"),
        ({"input_length": 600, "output_length": 1, "hash_ids": [1]}, "for each 512 tokens"),
        ({"input_length": 5, "hash_ids": [1]}, "output_length must be"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: Any, rule: str) -> None:
    path = write_trace(tmp_path, {"prompt": "fine", "max_tokens": 1}, line)
    with pytest.raises(ConfigError, match="line 2: ") as caught:
        read_trace(path)
    assert rule in str(caught.value)


def test_files_that_have_no_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="has no requests"):
        read_trace(write_trace(tmp_path))
    (tmp_path / "bad.jsonl").write_bytes(b"{}\xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_trace(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_bytes(b"{\n")
    with pytest.raises(ConfigError, match="line 1: is no JSON"):
        read_trace(tmp_path / "bad.jsonl")
