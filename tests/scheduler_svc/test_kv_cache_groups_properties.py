"""Random lives of a scheduler over random groups of layers: no leak, every output exact."""

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagewire.kit.errors import PagewireError
from scheduler_svc.kv_cache_groups import KvCacheGroups
from scheduler_svc.output import SchedulerOutput
from scheduler_svc.request import Request
from scheduler_svc.scheduler import Scheduler
from tests.scheduler_svc.factories import add, make_limits
from tests.scheduler_svc.grouped_model import (
    FULL,
    GroupedDrafter,
    GroupedModel,
    expected_output,
    sliding,
)

MAX_MODEL_LEN = 40

# Two tokens only, so that prompts have beginnings in common.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)
layouts = st.lists(
    st.one_of(st.just(FULL), st.integers(1, 30).map(sliding)), min_size=1, max_size=4
).map(tuple)


class GroupsMachine(RuleBasedStateMachine):
    @initialize(
        groups=layouts,
        blocks_a_group=st.integers(2, 20),
        block_size=st.integers(1, 6),
        max_num_batched_tokens=st.integers(1, 40),
        max_num_seqs=st.integers(1, 6),
        enable_prefix_caching=st.booleans(),
        reserve_full_isl=st.booleans(),
        long_prefill_token_threshold=st.integers(0, 5),
        policy=st.sampled_from(["fcfs", "priority"]),
        max_in_flight=st.integers(1, 3),
        drafts=st.booleans(),
    )
    def start(
        self,
        groups: KvCacheGroups,
        blocks_a_group: int,
        max_in_flight: int,
        drafts: bool,
        **limits: object,
    ) -> None:
        # 1 is without overlap, 2 is with it; 3 is more than the engine does.
        self.max_in_flight = max_in_flight
        self.groups = groups
        self.in_flight: deque[SchedulerOutput] = deque()
        self.limits = make_limits(
            **limits,
            kv_cache_groups=groups,
            num_blocks=blocks_a_group * len(groups),
            max_model_len=MAX_MODEL_LEN,
        )
        drafter = GroupedDrafter(groups) if drafts else None
        self.scheduler = Scheduler(self.limits, drafter=drafter)
        self.model = GroupedModel(groups, self.limits.num_blocks, self.limits.block_size)
        self.live: dict[str, Request] = {}
        self.delivered: dict[str, list[int]] = {}

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 16),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(-2, 2),
    )
    def add(self, prompt: list[int], max_tokens: int, salt: str | None, priority: int) -> None:
        try:
            request = add(
                self.scheduler,
                prompt,
                max_tokens=max_tokens,
                cache_salt=salt,
                priority=priority if self.limits.policy == "priority" else 0,
            )
        except PagewireError as error:
            assert error.reason == "EXCEEDS_KV_CACHE"
            return
        self.live[request.request_id] = request
        self.delivered[request.request_id] = []

    @precondition(lambda self: len(self.in_flight) < self.max_in_flight)
    @rule()
    def send(self) -> None:
        output = self.scheduler.schedule(0.0)
        if not output.is_empty:
            self.in_flight.append(output)

    @precondition(lambda self: self.in_flight)
    @rule()
    def receive(self) -> None:
        output = self.in_flight.popleft()
        result = self.model.execute(output)
        for client in self.scheduler.update_from_output(output, result).values():
            for request_id, token_ids in zip(client.request_ids, client.new_token_ids, strict=True):
                self.delivered[request_id] += token_ids
            for end in client.finished:
                self._check(self.live.pop(end.request_id))

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

    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    @invariant()
    def is_whole(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        kv = self.scheduler.kv_cache
        held = {
            block_id
            for request_id in kv._tables
            for block_id in kv.block_ids(self.live[request_id])
            if block_id
        }
        assert len(held) + kv.num_free_blocks == self.limits.num_usable_blocks

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
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

    def _check(self, request: Request) -> None:
        prompt = request.core_request.prompt_token_ids
        max_tokens = request.sampling_params.max_tokens
        expected = expected_output(self.groups, prompt, max_tokens, self.limits.eos_token_ids)
        assert self.delivered[request.request_id] == expected[: MAX_MODEL_LEN - len(prompt)]


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
