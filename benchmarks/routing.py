"""What prefix-aware routing gains: conversations on many replicas under a virtual clock.

    python benchmarks/routing.py
    python benchmarks/routing.py --replicas 4 --conversations 64 --seeds 1

The schedulers are real (prefix cache, chunked prefill, preemption), and so are the gateway's
policy, its index, which follows their KV events, and its view of their load, which is as old as
the reports are. A step takes what a roofline of the GPU says, so that nothing here depends on this
machine: 8 replicas and 512 streams as processes would measure its cores. Each conversation begins
with the system prompt of one of several applications, and sends its next turn, with all that was
said before, some time after the answer to the last. All policies get the same conversations.
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from gateway.routing.policies import Candidate, PolicyName, RoutingPolicy
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_match import PromptPrefix, match_prefix
from gateway.routing.replica_load import LoadReport, ReplicaLoad
from pagewire import __version__
from pagewire.kit.machine import describe_machine
from pagewire.sampling_params import SamplingParams
from scheduler_svc.kv_events import KvEventBatch, KvEventLog
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.simulate.hardware import HardwareConfig
from scheduler_svc.simulate.step_time import Roofline

RESULTS = Path(__file__).parent / "results"
POLICIES: tuple[PolicyName, ...] = ("round-robin", "least-loaded", "prefix-aware")
BLOCK_SIZE = 16
VOCAB_SIZE = 100_000
REPORT_INTERVAL_S = 0.2
_MAX_BATCHES_A_STEP = 256
EVENT_DELAY_S = 0.005
"""From a scheduler's step to the gateway's index."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations; lengths in tokens."""

    conversations: int = 512
    turns: int = 6
    applications: int = 16
    system_tokens: int = 1024
    """Of each application, at the beginning of all its conversations."""
    min_user_tokens: int = 64
    max_user_tokens: int = 448
    answer_tokens: int = 128
    think_s: float = 0.5
    """Mean time between an answer and the next turn."""
    start_s: float = 2.0
    """Conversations begin evenly within this time."""


@dataclass(slots=True)
class Conversation:
    """One stream: what was said so far."""

    rng: random.Random
    token_ids: list[int]
    turns_left: int
    sent_at_s: float = 0.0
    has_first_token: bool = False


@dataclass(slots=True)
class Figures:
    """Of one run."""

    ttft_s: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    end_s: float = 0.0
    requests_by_replica: list[int] = field(default_factory=list)
    routing_us: list[float] = field(default_factory=list)


class VirtualReplica:
    """A scheduler, the step that runs, and what a gateway knows of it."""

    def __init__(self, key: str, limits: SchedulerLimits, roofline: Roofline) -> None:
        self.key = key
        self.events = KvEventLog(_MAX_BATCHES_A_STEP)
        self.scheduler = Scheduler(limits, self.events)
        self.index, self.load = PrefixIndex(BLOCK_SIZE), ReplicaLoad()
        self.index.take_snapshot((), 0, True)
        self.live: dict[str, Conversation] = {}
        self.step: SchedulerOutput | None = None
        self._roofline = roofline
        self._told: deque[tuple[float, list[KvEventBatch]]] = deque()
        self._next_sequence = self.events.next_sequence

    def schedule(self, now_s: float) -> float | None:
        """Begin a step; return when it ends, None if there is nothing to do."""
        if not self.scheduler.has_work:
            return None
        self.step = self.scheduler.schedule(now_s)
        self._told.append((now_s + EVENT_DELAY_S, self._new_batches()))
        return now_s + self._roofline.seconds(self.step)

    def tell(self, now_s: float) -> None:
        """Bring the gateway's index up to what has reached it by now."""
        while self._told and self._told[0][0] <= now_s:
            for batch in self._told.popleft()[1]:
                stored = [each for blocks in batch.stored for each in blocks.hashes]
                self.index.apply(batch.sequence, batch.all_cleared, batch.removed_hashes, stored)

    def report(self) -> None:
        """Tell the gateway the load of this moment."""
        stats = self.scheduler.make_stats()
        num_requests = stats.num_requests_running + stats.num_requests_waiting
        report = LoadReport(num_requests, stats.num_tokens_waiting, True)
        self.load.take(report, len(self.live))

    def _new_batches(self) -> list[KvEventBatch]:
        """What the cache has said since this was last asked, oldest first."""
        if self.events.first_sequence > self._next_sequence:
            raise RuntimeError(f"a step made more than {_MAX_BATCHES_A_STEP} batches of events")
        num_new = self.events.next_sequence - self._next_sequence
        self._next_sequence = self.events.next_sequence
        return list(islice(reversed(self.events._batches), num_new))[::-1]


class Run:
    """One policy on one set of conversations, until all have ended."""

    def __init__(
        self, policy: PolicyName, workload: Workload, num_replicas: int, seed: int
    ) -> None:
        hardware = HardwareConfig()
        roofline = Roofline(hardware)
        kv_bytes = 0.9 * 80e9 - roofline.weight_bytes
        limits = SchedulerLimits(
            max_model_len=16_384,
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            block_size=BLOCK_SIZE,
            num_blocks=int(kv_bytes / roofline.kv_bytes_per_token / BLOCK_SIZE),
            vocab_size=VOCAB_SIZE,
        )
        self.figures = Figures()
        self._workload = workload
        self._policy = RoutingPolicy(policy)
        self._replicas = [VirtualReplica(f"r{i}", limits, roofline) for i in range(num_replicas)]
        self._routed = [0] * num_replicas
        self._order, self._ids = count(), count()
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_left = workload.conversations
        self._params = SamplingParams(
            max_tokens=workload.answer_tokens, ignore_eos=True, temperature=0.0
        )
        self._begin(random.Random(seed))

    def run(self) -> Figures:
        """Return the figures."""
        self._report(0.0)
        while self._num_left:
            now_s, _, event = heapq.heappop(self._heap)
            event(now_s)
            self.figures.end_s = now_s
        figures = self.figures
        figures.requests_by_replica = self._routed
        figures.num_preemptions = sum(
            replica.scheduler.make_stats().num_preemptions for replica in self._replicas
        )
        return figures

    def _begin(self, rng: random.Random) -> None:
        work = self._workload
        systems = [_tokens(rng, work.system_tokens) for _ in range(work.applications)]
        for number in range(work.conversations):
            own = random.Random(rng.random())
            conversation = Conversation(own, list(own.choice(systems)), work.turns)
            self._at(work.start_s * number / work.conversations, self._turn, conversation)

    def _at(self, time_s: float, event: Callable[..., None], *args: Any) -> None:
        entry = (time_s, next(self._order), lambda now_s: event(*args, now_s))
        heapq.heappush(self._heap, entry)

    def _report(self, now_s: float) -> None:
        for replica in self._replicas:
            replica.report()
        self._at(now_s + REPORT_INTERVAL_S, self._report)

    def _turn(self, conversation: Conversation, now_s: float) -> None:
        """Say something, and have it answered."""
        work, rng = self._workload, conversation.rng
        num_tokens = rng.randint(work.min_user_tokens, work.max_user_tokens)
        conversation.token_ids += _tokens(rng, num_tokens)
        conversation.sent_at_s, conversation.has_first_token = now_s, False
        replica = self._route(conversation.token_ids, now_s)
        request_id = str(next(self._ids))
        replica.live[request_id] = conversation
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=list(conversation.token_ids),
            sampling_params=self._params,
            arrival_time_s=now_s,
        )
        replica.scheduler.add_request(request, now_s)
        if replica.step is None:
            self._schedule(replica, now_s)

    def _route(self, token_ids: Sequence[int], now_s: float) -> VirtualReplica:
        for replica in self._replicas:
            replica.tell(now_s)
        started_s = time.perf_counter()
        prompt = PromptPrefix(token_ids)
        matched = [0] * len(self._replicas)
        if self._policy.wants_prefixes:
            matched = match_prefix(prompt, [replica.index for replica in self._replicas])
        candidates = [
            Candidate(
                replica.key,
                replica.load.num_requests(len(replica.live)),
                replica.load.num_tokens_waiting,
                matched[place],
            )
            for place, replica in enumerate(self._replicas)
        ]
        place = candidates.index(self._policy.choose(candidates, len(token_ids)))
        self.figures.routing_us.append((time.perf_counter() - started_s) * 1e6)
        self._routed[place] += 1
        self._replicas[place].load.added(len(token_ids) - matched[place])
        return self._replicas[place]

    def _schedule(self, replica: VirtualReplica, now_s: float) -> None:
        end_s = replica.schedule(now_s)
        if end_s is not None:
            self._at(end_s, self._complete, replica)

    def _complete(self, replica: VirtualReplica, now_s: float) -> None:
        step, replica.step = replica.step, None
        if step is None:
            raise RuntimeError("no step runs")
        # Any token will do: what is before it tells conversations apart.
        result = ModelRunnerOutput(step.step, [(7,) if draws else () for draws in step.draws])
        for outputs in replica.scheduler.update_from_output(step, result).values():
            for request_id in outputs.request_ids:
                conversation = replica.live[request_id]
                if not conversation.has_first_token:
                    conversation.has_first_token = True
                    self.figures.ttft_s.append(now_s - conversation.sent_at_s)
            for finished in outputs.finished:
                self._answered(replica.live.pop(finished.request_id), finished, now_s)
        self._schedule(replica, now_s)

    def _answered(self, conversation: Conversation, finished: Any, now_s: float) -> None:
        figures = self.figures
        figures.num_output_tokens += finished.num_output_tokens
        figures.num_prompt_tokens += finished.num_prompt_tokens
        figures.num_cached_tokens += finished.num_cached_tokens
        conversation.token_ids += [7] * finished.num_output_tokens
        conversation.turns_left -= 1
        if conversation.turns_left:
            pause_s = conversation.rng.expovariate(1 / self._workload.think_s)
            self._at(now_s + pause_s, self._turn, conversation)
        else:
            self._num_left -= 1


def _tokens(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(number)]


def summary(figures: Figures) -> dict[str, Any]:
    """Return what is kept of a run."""
    ttft_s = sorted(figures.ttft_s)
    return {
        "output_tokens_per_s": round(figures.num_output_tokens / figures.end_s, 1),
        "total_s": round(figures.end_s, 2),
        "ttft_ms_median": round(statistics.median(ttft_s) * 1e3, 1),
        "ttft_ms_p99": round(ttft_s[int(len(ttft_s) * 0.99)] * 1e3, 1),
        "hit_rate": round(figures.num_cached_tokens / figures.num_prompt_tokens, 4),
        "computed_prompt_tokens": figures.num_prompt_tokens - figures.num_cached_tokens,
        "preemptions": figures.num_preemptions,
        "requests_by_replica": figures.requests_by_replica,
        "routing_us_median": round(statistics.median(figures.routing_us), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each policy")
    defaults = Workload()
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--save", action="store_true", help="write into benchmarks/results")
    arguments = vars(parser.parse_args())
    workload = Workload(**{name: arguments[name] for name in asdict(defaults)})
    rows = []
    for seed in range(arguments["seeds"]):
        for policy in POLICIES:
            row = summary(Run(policy, workload, arguments["replicas"], seed).run())
            rows.append({"seed": seed, "policy": policy, **row})
            print(json.dumps(rows[-1]), flush=True)
    for policy in POLICIES[1:]:
        print(f"{policy} against {POLICIES[0]}: {json.dumps(ratios(rows, policy))}")
    if arguments["save"]:
        save(arguments["replicas"], workload, rows)


def ratios(rows: Sequence[dict[str, Any]], policy: str) -> dict[str, float]:
    """Return the medians of a policy's figures over those of the first one, by seed."""
    by_key = {(row["policy"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    return {
        name: round(
            statistics.median(
                by_key[policy, seed][name] / by_key[POLICIES[0], seed][name] for seed in seeds
            ),
            3,
        )
        for name in ("output_tokens_per_s", "ttft_ms_median", "ttft_ms_p99", "hit_rate")
    }


def save(num_replicas: int, workload: Workload, rows: Sequence[dict[str, Any]]) -> None:
    today = datetime.date.today().isoformat()
    document = {
        "benchmark": "routing",
        "date": today,
        "version": __version__,
        "machine": describe_machine(),
        "note": "virtual clock: only routing_us depends on the machine",
        "hardware": asdict(HardwareConfig()),
        "replicas": num_replicas,
        "workload": asdict(workload),
        "runs": list(rows),
        "ratios": {policy: ratios(rows, policy) for policy in POLICIES[1:]},
    }
    path = RESULTS / f"routing-{today}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
