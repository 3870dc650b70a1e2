"""Random lives of a scheduler: nothing leaks, nothing starves, every output is exact."""

from collections import Counter, deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagewire.kit.errors import PagewireError
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.output import SchedulerOutput
from scheduler_svc.pause import PauseState
from scheduler_svc.request import Request
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.drafters import KnowingDrafter
from tests.scheduler_svc.factories import add, make_limits, scheduled
from tests.scheduler_svc.grammars import TextGrammar
from tests.scheduler_svc.sim_model import SimModel, expected_output

MAX_MODEL_LEN = 40
FORM = StructuredOutputs(regex="a")

# Two tokens only, so that prompts have beginnings in common.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)


class SchedulerMachine(RuleBasedStateMachine):
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
        # 1 is without overlap, 2 is with it; 3 is more than the engine does.
        self.max_in_flight = max_in_flight
        self.in_flight: deque[SchedulerOutput] = deque()
        self.ended: dict[str, FinishReason] = {}
        self.num_wasted: Counter[str] = Counter()
        limits = make_limits(**limits, max_model_len=MAX_MODEL_LEN)
        self.scheduler = Scheduler(limits, drafter=drafter)
        self.model = SimModel(limits.num_blocks, limits.block_size)
        self.live: dict[str, Request] = {}
        self.waiting_for_grammars: list[Request] = []
        self.delivered: dict[str, list[int]] = {}

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
        try:
            request = add(self.scheduler, prompt, **overrides)
        except PagewireError as error:
            assert error.reason == "EXCEEDS_KV_CACHE"
            return
        self.live[request.request_id] = request
        self.delivered[request.request_id] = []

    @rule(prompt=prompts, max_tokens=st.integers(2, 12), data=st.data())
    def add_resumed(self, prompt: list[int], max_tokens: int, data: st.DataObject) -> None:
        output = expected_output(prompt, max_tokens)
        num_delivered = data.draw(st.integers(0, max_tokens - 1))
        before = output[:num_delivered]
        if 999 in before:
            return
        try:
            request = add(
                self.scheduler,
                prompt,
                max_tokens=max_tokens,
                output_token_ids=before,
                is_resumed=True,
            )
        except PagewireError as error:
            assert error.reason == "EXCEEDS_KV_CACHE"
            return
        self.live[request.request_id] = request
        self.delivered[request.request_id] = list(before)

    @rule(prompt=prompts, max_tokens=st.integers(1, 12))
    def add_formed(self, prompt: list[int], max_tokens: int) -> None:
        """One whose form is the very output that the model gives: a grammar that falls behind or
        runs ahead of the output refuses the next token."""
        try:
            request = add(self.scheduler, prompt, max_tokens=max_tokens, structured_outputs=FORM)
        except PagewireError as error:
            assert error.reason == "EXCEEDS_KV_CACHE"
            return
        self.live[request.request_id] = request
        self.delivered[request.request_id] = []
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

    @precondition(lambda self: len(self.in_flight) < self.max_in_flight)
    @rule()
    def send(self) -> None:
        output = self.scheduler.schedule(0.0)
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
        if not output.is_empty:
            self.in_flight.append(output)

    @precondition(lambda self: self.in_flight)
    @rule()
    def receive(self) -> None:
        output = self.in_flight.popleft()
        result = self.model.execute(output)
        self.num_wasted.update(
            request_id for request_id in scheduled(output) if request_id in self.ended
        )
        self._take(self.scheduler.update_from_output(output, result))

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
        if hasattr(self, "scheduler"):
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
        assert max(self.num_wasted.values(), default=0) <= self.max_in_flight - 1
        # That the output will be full is known before its last token is.
        full = [i for i, reason in self.ended.items() if reason is FinishReason.LENGTH]
        assert all(self.num_wasted[request_id] == 0 for request_id in full)
        assert self.scheduler.make_stats().kv_cache_usage == 0
        assert self.model.num_requests == 0
        self.scheduler.check_integrity()

    def _take(self, outputs: dict) -> None:
        for client in outputs.values():
            for request_id, token_ids in zip(client.request_ids, client.new_token_ids, strict=True):
                self.delivered[request_id] += token_ids
            for end in client.finished:
                request = self.live.pop(end.request_id)
                self.ended[end.request_id] = end.reason
                if request.grammar is not None:
                    assert request.grammar.num_accepted == len(self.delivered[end.request_id])
                eos = self.scheduler.limits.eos_token_ids
                max_tokens = request.sampling_params.max_tokens
                prompt = request.core_request.prompt_token_ids
                expected = expected_output(prompt, max_tokens, eos)[: MAX_MODEL_LEN - len(prompt)]
                assert self.delivered[end.request_id] == expected


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
