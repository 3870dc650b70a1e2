"""One replica under a virtual clock: the scheduler's core, and a step time instead of a worker.

It does what `engine_core` does between two steps, at times that it is told: take arrivals,
schedule, update. It owns the replica's `Scheduler` and counts what happens; it does not know the
other replicas, nor where requests come from. Called by `simulation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagewire.kit.errors import InvalidRequestError, QueueFullError
from pagewire.sampling_params import SamplingParams
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.simulate.measures import Measures, Point, Series
from scheduler_svc.simulate.prompt import PromptMaker
from scheduler_svc.simulate.step_time import StepTime
from scheduler_svc.simulate.token_clock import TokenClock
from scheduler_svc.simulate.trace import TraceRequest

TOKENS_BY_DRAW: tuple[Sequence[int], Sequence[int]] = ((), (0,))
"""What a row draws: nothing, or a token. Outputs need not differ: what is before them does."""


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    output: SchedulerOutput
    duration_s: float


@dataclass(frozen=True, slots=True)
class _Arrival:
    number: int
    request: TraceRequest


class VirtualEngine:
    """A replica.

    Invariants: steps complete in the order in which they were scheduled, one after the other;
    `end_of_step_s` is None exactly when nothing runs.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        step_time: StepTime,
        *,
        max_steps_in_flight: int = 1,
        rejects_when_full: bool = False,
        on_step: Callable[[SchedulerOutput], None] | None = None,
    ) -> None:
        """Build an idle replica.

        Args:
            limits: As the live engine's.
            step_time: How long the worker takes.
            max_steps_in_flight: With more than one, steps are scheduled before the results of those
                before them are known, as the live engine does.
            rejects_when_full: Whether an arrival that finds the queue full is lost; else it stands
                outside until there is room.
            on_step: Sees every step right after it was scheduled.
        """
        self.measures = Measures()
        self.series = Series()
        self.end_of_step_s: float | None = None
        self._limits = limits
        self._scheduler = Scheduler(limits)
        self._step_time = step_time
        self._max_in_flight = max_steps_in_flight
        self._rejects_when_full = rejects_when_full
        self._on_step = on_step
        self._prompts = PromptMaker(limits.max_model_len)
        self._tokens = TokenClock(self.measures.ttft_s, self.measures.itl_s)
        self._in_flight: deque[_StepInFlight] = deque()
        self._outside: deque[_Arrival] = deque()
        self._arrival_times_s: dict[str, float] = {}
        self._sampling_params: dict[int, SamplingParams] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that were not admitted yet, or were preempted."""
        return self._scheduler.num_waiting + len(self._outside)

    @property
    def num_unfinished(self) -> int:
        return self._scheduler.num_requests + len(self._outside)

    def submit(self, number: int, request: TraceRequest, now_s: float) -> None:
        """Take an arrival.

        Args:
            number: Differs between all requests of the simulation.
            request: What arrives.
            now_s: When.
        """
        self.measures.num_requests += 1
        if request.num_prompt_tokens >= self._limits.max_model_len:
            # The core would say so too, after a look at every token.
            self.measures.refusals["PROMPT_TOO_LONG"] += 1
        elif self._outside:
            self._outside.append(_Arrival(number, request))
        else:
            self._add(_Arrival(number, request), now_s)

    def start(self, now_s: float) -> None:
        """Schedule a step now if none runs and there is something to do."""
        if self.end_of_step_s is None:
            self._go_on(now_s)

    def complete_step(self) -> None:
        """Take in the step that runs; the next one starts at the same time."""
        if self.end_of_step_s is None:
            raise RuntimeError("no step runs")
        now_s, self.end_of_step_s = self.end_of_step_s, None
        step = self._in_flight.popleft()
        sampled_token_ids = list(map(TOKENS_BY_DRAW.__getitem__, step.output.draws))
        result = ModelRunnerOutput(step.output.step, sampled_token_ids)
        outputs = self._scheduler.update_from_output(step.output, result)
        self._count(step, outputs, now_s)
        while self._outside and self._has_room():
            self._add(self._outside.popleft(), now_s)
        self._go_on(now_s)

    def close(self) -> Measures:
        """The measures, with the core's own counts."""
        stats, measures = self._scheduler.make_stats(), self.measures
        measures.num_preemptions = stats.num_preemptions
        measures.prefix_cache_queries = stats.prefix_cache_queries
        measures.prefix_cache_hits = stats.prefix_cache_hits
        return measures

    def _go_on(self, now_s: float) -> None:
        """Schedule steps up to the bound; the oldest runs from now on."""
        while len(self._in_flight) < self._max_in_flight and self._scheduler.has_work:
            output = self._scheduler.schedule(now_s)
            if output.is_empty:
                # Everything waits for what is under way.
                break
            self._in_flight.append(self._note(output))
        if self._in_flight:
            self.end_of_step_s = now_s + self._in_flight[0].duration_s

    def _note(self, output: SchedulerOutput) -> _StepInFlight:
        if self._on_step is not None:
            self._on_step(output)
        return _StepInFlight(output, self._step_time.seconds(output))

    def _has_room(self) -> bool:
        return self._scheduler.num_waiting < self._limits.max_num_queued_requests

    def _add(self, arrival: _Arrival, now_s: float) -> None:
        core_request = self._core_request(arrival)
        try:
            self._scheduler.add_request(core_request, now_s)
        except InvalidRequestError as error:
            self.measures.refusals[error.reason] += 1
        except QueueFullError:
            if self._rejects_when_full:
                self.measures.num_rejected += 1
            else:
                self._outside.appendleft(arrival)
        else:
            self._arrival_times_s[core_request.request_id] = arrival.request.arrival_time_s

    def _core_request(self, arrival: _Arrival) -> EngineCoreRequest:
        request = arrival.request
        return EngineCoreRequest(
            request_id=str(arrival.number),
            prompt_token_ids=self._prompts.make(
                request.num_prompt_tokens,
                arrival.number,
                request.shared_prefix_id,
                request.num_shared_prefix_tokens,
            ),
            sampling_params=self._params(request.num_output_tokens),
            arrival_time_s=request.arrival_time_s,
            priority=request.priority,
        )

    def _params(self, num_output_tokens: int) -> SamplingParams:
        # The context ends an output anyway, so there are few different ones.
        max_tokens = min(num_output_tokens, self._limits.max_model_len)
        params = self._sampling_params.get(max_tokens)
        if params is None:
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
            self._sampling_params[max_tokens] = params
        return params

    def _count(
        self, step: _StepInFlight, outputs: dict[int, EngineCoreOutputs], now_s: float
    ) -> None:
        measures, arrivals_s = self.measures, self._arrival_times_s
        measures.num_steps += 1
        measures.busy_s += step.duration_s
        measures.end_s = now_s
        drawn_ids = [] if not outputs else outputs[0].request_ids
        self._tokens.complete(step.output, drawn_ids, arrivals_s, now_s)
        for client in outputs.values():
            for first in client.scheduled:
                measures.queue_s.add(first.queued_time_s)
            for finished in client.finished:
                measures.e2e_s.add(now_s - arrivals_s.pop(finished.request_id))
                measures.num_finished += 1
                measures.num_prompt_tokens += finished.num_prompt_tokens
                measures.num_output_tokens += finished.num_output_tokens
                measures.num_cached_tokens += finished.num_cached_tokens
        if self.series.is_due(now_s):
            usage = self._scheduler.kv_cache.usage
            running = self._scheduler.num_running
            self.series.add(Point(now_s, running, self.num_waiting, usage))
