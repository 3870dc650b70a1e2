"""The moves that the random lives of any scheduler are made of.

A subclass begins a life with a scheduler and a model, adds what requests it likes and says what
must hold of plans, answers and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pagewire.kit.errors import PagewireError
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.request import Request
from scheduler_svc.scheduler import Scheduler
from tests.scheduler_svc.factories import add

MAX_MODEL_LEN = 40

# Two tokens only, so that prompts have beginnings in common.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)

LIVES = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class PagedModel(Protocol):
    """A worker that keeps KV in pages."""

    @property
    def num_requests(self) -> int: ...
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput: ...
    def fail(self, output: SchedulerOutput) -> None: ...
    def knows_rows_of(self, output: SchedulerOutput) -> bool: ...
    def lose_everything(self) -> None: ...


class RandomLives(RuleBasedStateMachine):
    """One scheduler, the steps that are under way, and what was delivered to each request."""

    scheduler: Scheduler
    model: PagedModel

    def begin(self, scheduler: Scheduler, model: PagedModel, max_in_flight: int) -> None:
        """Begin a life.

        Args:
            scheduler: Without requests.
            model: Runs its steps.
            max_in_flight: Steps under way: 1 is without overlap, 2 with it, 3 is more than the
                engine does.
        """
        self.scheduler, self.model, self.max_in_flight = scheduler, model, max_in_flight
        self.in_flight: deque[SchedulerOutput] = deque()
        self.live: dict[str, Request] = {}
        self.delivered: dict[str, list[int]] = {}

    def take_in(
        self, prompt: Sequence[int], delivered: Sequence[int] = (), **overrides: Any
    ) -> Request | None:
        """Add a request; None if it can never fit.

        Args:
            prompt: Its prompt.
            delivered: Its output so far.
            **overrides: As for `factories.add`.
        """
        try:
            request = add(self.scheduler, prompt, **overrides)
        except PagewireError as error:
            assert error.reason == "EXCEEDS_KV_CACHE"
            return None
        self.live[request.request_id] = request
        self.delivered[request.request_id] = list(delivered)
        return request

    # What a subclass may say.

    def check_plan(self, output: SchedulerOutput) -> None:
        """Look at a step that was just planned."""

    def note_answer(self, output: SchedulerOutput) -> None:
        """Look at a step that was answered, before the answer is taken in."""

    def check_end(self, request: Request, end: FinishedRequest) -> None:
        """Look at a request that a step ended."""

    # Moves.

    @precondition(lambda self: len(self.in_flight) < self.max_in_flight)
    @rule()
    def send(self) -> None:
        output = self.scheduler.schedule(0.0)
        self.check_plan(output)
        if not output.is_empty:
            self.in_flight.append(output)

    @precondition(lambda self: self.in_flight)
    @rule()
    def receive(self) -> None:
        output = self.in_flight.popleft()
        result = self.model.execute(output)
        self.note_answer(output)
        for client in self.scheduler.update_from_output(output, result).values():
            for request_id, token_ids in zip(client.request_ids, client.new_token_ids, strict=True):
                self.delivered[request_id] += token_ids
            for end in client.finished:
                self.check_end(self.live.pop(end.request_id), end)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.finish_requests([request_id])
        del self.live[request_id]

    @rule()
    def lose_the_worker(self) -> None:
        self.in_flight.clear()
        self.scheduler.forget_worker()
        self.model.lose_everything()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail_a_step(self) -> None:
        """The oldest step under way fails, and those behind it that build upon it."""
        outputs = list(self.in_flight)
        self.in_flight.clear()
        for output in outputs:
            if output is outputs[0] or not self.model.knows_rows_of(output):
                self.model.fail(output)
            else:
                self.model.execute(output)
        self.scheduler.take_back_steps(outputs)

    def live_out(self) -> None:
        """Run to the end of all requests; nothing may be left of them."""
        # The worst case is one token of progress a step, after a prefill one token at a time.
        num_steps = (len(self.live) + 1) * MAX_MODEL_LEN * MAX_MODEL_LEN
        while (self.scheduler.has_work or self.in_flight) and num_steps > 0:
            while self.scheduler.has_work and len(self.in_flight) < self.max_in_flight:
                num_in_flight = len(self.in_flight)
                self.send()
                if len(self.in_flight) == num_in_flight:
                    break
            self.receive()
            num_steps -= 1
        assert not self.live
        assert self.scheduler.make_stats().kv_cache_usage == 0
        assert self.model.num_requests == 0
        self.scheduler.check_integrity()
