"""Random lives of a scheduler over random groups of layers: no leak, every output exact."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.kv_cache_groups import KvCacheGroups
from scheduler_svc.request import Request
from scheduler_svc.scheduler import Scheduler
from tests.scheduler_svc.factories import make_limits
from tests.scheduler_svc.grouped_model import (
    FULL,
    GroupedDrafter,
    GroupedModel,
    expected_output,
    sliding,
)
from tests.scheduler_svc.random_lives import LIVES, MAX_MODEL_LEN, RandomLives, prompts

layouts = st.lists(
    st.one_of(st.just(FULL), st.integers(1, 30).map(sliding)), min_size=1, max_size=4
).map(tuple)


class GroupsMachine(RandomLives):
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
        self.groups = groups
        self.limits = make_limits(
            **limits,
            kv_cache_groups=groups,
            num_blocks=blocks_a_group * len(groups),
            max_model_len=MAX_MODEL_LEN,
        )
        drafter = GroupedDrafter(groups) if drafts else None
        model = GroupedModel(groups, self.limits.num_blocks, self.limits.block_size)
        self.begin(Scheduler(self.limits, drafter=drafter), model, max_in_flight)

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 16),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(-2, 2),
    )
    def add(self, prompt: list[int], max_tokens: int, salt: str | None, priority: int) -> None:
        if self.limits.policy != "priority":
            priority = 0
        self.take_in(prompt, max_tokens=max_tokens, cache_salt=salt, priority=priority)

    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    @invariant()
    def is_whole(self) -> None:
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
        if hasattr(self, "scheduler"):
            self.live_out()

    def check_end(self, request: Request, end: FinishedRequest) -> None:
        prompt = request.core_request.prompt_token_ids
        max_tokens = request.sampling_params.max_tokens
        expected = expected_output(self.groups, prompt, max_tokens, self.limits.eos_token_ids)
        assert self.delivered[request.request_id] == expected[: MAX_MODEL_LEN - len(prompt)]


TestGroups = GroupsMachine.TestCase
TestGroups.settings = LIVES
