"""Random lives of a scheduler: nothing leaks, nothing starves, every output is exact."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.output import SchedulerOutput
from scheduler_svc.pause import PauseState
from scheduler_svc.request import Request
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.drafters import KnowingDrafter
from tests.scheduler_svc.factories import make_limits, scheduled
from tests.scheduler_svc.grammars import TextGrammar
from tests.scheduler_svc.random_lives import LIVES, MAX_MODEL_LEN, RandomLives, prompts
from tests.scheduler_svc.sim_model import SimModel, expected_output

FORM = StructuredOutputs(regex="a")


class SchedulerMachine(RandomLives):
    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.integers(1, 6),
        max_num_batched_tokens=st.integers(1, 40),
        max_num_seqs=st.integers(1, 6),
        enable_prefix_caching=st.booleans(),
        reserve_full_isl=st.booleans(),
        long_prefill_token_threshold=st.integers(0, 5),
        watermark=st.sampled_from([0.0, 0.1, 0.5]),
        policy=st.sampled_from(["fcfs", "priority"]),
        max_in_flight=st.integers(1, 3),
        drafter=st.sampled_from([None, KnowingDrafter(4, 70), KnowingDrafter(9, 95)]),
    )
    def start(self, max_in_flight: int, drafter: KnowingDrafter | None, **limits: object) -> None:
        self.ended: dict[str, FinishReason] = {}
        self.num_wasted: Counter[str] = Counter()
        self.waiting_for_grammars: list[Request] = []
        limits = make_limits(**limits, max_model_len=MAX_MODEL_LEN)
        model = SimModel(limits.num_blocks, limits.block_size)
        self.begin(Scheduler(limits, drafter=drafter), model, max_in_flight)

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 12),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(-2, 2),
        prompt_logprobs=st.sampled_from([None, None, 1]),
    )
    def add(self, prompt: list[int], priority: int, **overrides: object) -> None:
        overrides["cache_salt"] = overrides.pop("salt")
        if self.scheduler.limits.policy == "priority":
            overrides["priority"] = priority
        self.take_in(prompt, **overrides)

    @rule(prompt=prompts, max_tokens=st.integers(2, 12), data=st.data())
    def add_resumed(self, prompt: list[int], max_tokens: int, data: st.DataObject) -> None:
        num_delivered = data.draw(st.integers(0, max_tokens - 1))
        before = expected_output(prompt, max_tokens)[:num_delivered]
        if 999 in before:
            return
        self.take_in(
            prompt, before, max_tokens=max_tokens, output_token_ids=before, is_resumed=True
        )

    @rule(prompt=prompts, max_tokens=st.integers(1, 12))
    def add_formed(self, prompt: list[int], max_tokens: int) -> None:
        """One whose form is the very output that the model gives: a grammar that falls behind or
        runs ahead of the output refuses the next token."""
        request = self.take_in(prompt, max_tokens=max_tokens, structured_outputs=FORM)
        if request is not None:
            self.waiting_for_grammars.append(request)

    @precondition(lambda self: self.waiting_for_grammars)
    @rule(data=st.data())
    def make_grammar(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.waiting_for_grammars) - 1))
        self._make_grammar(self.waiting_for_grammars.pop(place))

    def _make_grammar(self, request: Request) -> None:
        prompt = request.core_request.prompt_token_ids
        grammar = TextGrammar(expected_output(prompt, 20), is_open=True)
        self.scheduler.set_grammar(request.request_id, grammar)

    @rule(state=st.sampled_from(PauseState))
    def pause_or_resume(self, state: PauseState) -> None:
        self.scheduler.pause_state = state

    @rule(reset_running_requests=st.booleans())
    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        idle = reset_running_requests or self.scheduler.num_running == 0
        reset = self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)
        assert reset == idle

    @invariant()
    def is_whole(self) -> None:
        self.scheduler.check_integrity()
        under_way = Counter(
            request.request_id
            for output in self.in_flight
            for request, draws in zip(output.requests, output.draws, strict=True)
            if draws and not request.ignores_outputs_of(output.step)
        )
        for request_id, request in self.live.items():
            assert request.num_output_placeholders == under_way[request_id]

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.pause_state = PauseState.UNPAUSED
        for request in self.waiting_for_grammars:
            self._make_grammar(request)
        self.live_out()
        assert max(self.num_wasted.values(), default=0) <= self.max_in_flight - 1
        # That the output will be full is known before its last token is.
        full = [i for i, reason in self.ended.items() if reason is FinishReason.LENGTH]
        assert all(self.num_wasted[request_id] == 0 for request_id in full)

    def check_plan(self, output: SchedulerOutput) -> None:
        limits = self.scheduler.limits
        if self.scheduler.pause_state is not PauseState.UNPAUSED:
            assert not output.scheduled_new_reqs
        if self.scheduler.pause_state is PauseState.PAUSED_ALL:
            assert not output.requests
        assert sum(scheduled(output).values()) <= limits.max_num_batched_tokens
        assert self.scheduler.num_running <= limits.max_num_seqs
        drawn = {
            request.request_id
            for earlier in self.in_flight
            for request, draws in zip(earlier.requests, earlier.draws, strict=True)
            if draws and not request.ignores_outputs_of(earlier.step)
        }
        assert not output.drafts.keys() & drawn
        drafted = {request_id for earlier in self.in_flight for request_id in earlier.drafts}
        assert not drafted & scheduled(output).keys()

    def note_answer(self, output: SchedulerOutput) -> None:
        self.num_wasted.update(
            request_id for request_id in scheduled(output) if request_id in self.ended
        )

    def check_end(self, request: Request, end: FinishedRequest) -> None:
        self.ended[end.request_id] = end.reason
        delivered = self.delivered[end.request_id]
        if request.grammar is not None:
            assert request.grammar.num_accepted == len(delivered)
        prompt, max_tokens = (
            request.core_request.prompt_token_ids,
            request.sampling_params.max_tokens,
        )
        expected = expected_output(prompt, max_tokens, self.scheduler.limits.eos_token_ids)
        assert delivered == expected[: MAX_MODEL_LEN - len(prompt)]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = LIVES
