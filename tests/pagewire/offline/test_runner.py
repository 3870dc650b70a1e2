"""`LLM` against a scripted gateway: order, bounds, and what becomes of failures."""

from __future__ import annotations

import signal
import threading
from itertools import count
from unittest.mock import MagicMock

import pytest

from pagewire import LLM, SamplingParams
from pagewire.errors import (
    InternalError,
    InvalidRequestError,
    PromptsFailedError,
    QueueFullError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from pagewire.offline import runner
from pagewire.v1 import common_pb2, inference_pb2
from tests.fakes.scripted_inference import ScriptedInference, running_inference


@pytest.fixture
def gateway():
    with running_inference() as servicer:
        servicer.scripts["GenerateBatch"] = echo
        yield servicer


@pytest.fixture
def llm(gateway: ScriptedInference):
    with LLM(address=gateway.target) as llm:
        yield llm


def response(*outputs):
    return inference_pb2.GenerateBatchResponse(outputs=outputs)


def output(prompt_index, text, index=0):
    return inference_pb2.BatchOutput(
        prompt_index=prompt_index,
        output=inference_pb2.GenerationDelta(index=index, text=text, token_ids=[5]),
        finished=inference_pb2.GenerationFinished(
            index=index, finish_reason=common_pb2.FINISH_REASON_STOP, stop_token_id=5
        ),
        usage=common_pb2.Usage(prompt_tokens=2, completion_tokens=1, cached_tokens=1),
        prompt_token_ids=[7, 8] if index == 0 else [],
    )


def echo(request, call):
    """Answer the last prompt first."""
    for place, prompt in reversed(list(enumerate(request.prompts))):
        for index in range(request.sampling.n):
            yield response(output(place, prompt.text.upper(), index))


def refuse_bad(request, call):
    """Refuse a batch that has a prompt that begins with `bad`."""
    if any(prompt.text.startswith("bad") for prompt in request.prompts):
        raise InvalidRequestError("prompt: too long", field="prompt")
    yield from echo(request, call)


def texts(outputs):
    return [None if each is None else each.text for each in outputs]


def test_outputs_come_in_the_order_of_the_prompts(llm, gateway):
    prompts = [f"p{i}" for i in range(300)]
    outputs = llm.generate(prompts, use_tqdm=False)
    assert texts(outputs) == [prompt.upper() for prompt in prompts]
    assert [each.prompt for each in outputs] == prompts
    assert len({each.request_id for each in outputs}) == 300
    first = outputs[0]
    assert first.prompt_token_ids == (7, 8) and first.num_cached_tokens == 1
    assert (first.outputs[0].finish_reason, first.outputs[0].stop_reason) == ("stop", 5)
    assert len(gateway.calls) == 5  # 64 in each


def test_n_outputs_of_each_prompt(llm, gateway):
    outputs = llm.generate(["a", "b"] * 40, SamplingParams(), n=2, use_tqdm=False)
    assert [[o.index for o in each.outputs] for each in outputs] == [[0, 1]] * 80
    assert sorted(len(call.request.prompts) for call in gateway.calls) == [16, 32, 32]
    assert outputs[0].usage.completion_tokens == 2 and outputs[0].usage.prompt_tokens == 2
    with pytest.raises(InvalidRequestError, match="n: must be at least 1"):
        llm.generate("a", n=0)


def test_nothing_is_asked_for_no_prompts(llm, gateway):
    assert llm.generate([]) == [] and llm.chat([]) == [] and gateway.calls == []


def test_what_is_in_flight_is_bounded(gateway):
    running, most = set(), [0]
    lock = threading.Lock()

    def watch(request, call):
        with lock:
            running.add(call)
            most[0] = max(most[0], sum(len(each.request.prompts) for each in running))
        yield from echo(request, call)
        with lock:
            running.discard(call)

    gateway.scripts["GenerateBatch"] = watch
    with LLM(address=gateway.target, max_in_flight=100) as llm:
        llm.generate(["a"] * 1000, use_tqdm=False)
    assert 0 < most[0] <= 100


def test_bad_prompts_are_named_and_all_others_are_finished(llm, gateway):
    gateway.scripts["GenerateBatch"] = refuse_bad
    prompts = [f"bad{i}" if i in (3, 77, 78) else f"p{i}" for i in range(100)]
    with pytest.raises(PromptsFailedError) as caught:
        llm.generate(prompts, use_tqdm=False)
    error = caught.value
    assert sorted(error.errors) == [3, 77, 78]
    assert all(isinstance(each, InvalidRequestError) for each in error.errors.values())
    assert "3 of 100 prompts failed, the first of them prompt 3: prompt: too long" in str(error)
    assert texts(error.outputs) == [None if i in (3, 77, 78) else f"P{i}" for i in range(100)]


def test_a_parameter_that_is_wrong_for_all_is_not_tried_prompt_by_prompt(llm, gateway):
    def refuse(request, call):
        raise InvalidRequestError("stop_token_ids: no", field="stop_token_ids")
        yield

    gateway.scripts["GenerateBatch"] = refuse
    with pytest.raises(PromptsFailedError) as caught:
        llm.generate(["a"] * 128, use_tqdm=False)
    assert len(caught.value.errors) == 128 and len(gateway.calls) == 2


def test_what_came_before_a_failure_is_kept_and_the_rest_is_asked_for_again(llm, gateway):
    attempts = count(1)

    def fail_once(request, call):
        if next(attempts) > 1:
            yield from echo(request, call)
            return
        yield response(output(1, "B"), output(0, "half", index=0))
        raise InternalError("a step failed")

    gateway.scripts["GenerateBatch"] = fail_once
    assert texts(llm.generate(["a", "b", "c", "d"], use_tqdm=False)) == ["half", "B", "C", "D"]
    asked = [[prompt.text for prompt in call.request.prompts] for call in gateway.calls]
    assert asked == [["a", "b", "c", "d"], ["c"], ["d"]]


def test_outputs_of_a_prompt_that_is_not_whole_do_not_count(llm, gateway):
    attempts = count(1)

    def fail_once(request, call):
        if next(attempts) > 1:
            yield from echo(request, call)
            return
        yield response(output(0, "first", index=0))
        raise InternalError("a step failed")

    gateway.scripts["GenerateBatch"] = fail_once
    with pytest.raises(PromptsFailedError):  # alone in its batch, so it is to blame
        llm.generate("a", SamplingParams(), n=2, use_tqdm=False)
    outputs = llm.generate(["a", "b"], SamplingParams(), n=2, use_tqdm=False)
    assert [[o.text for o in each.outputs] for each in outputs] == [["A", "A"], ["B", "B"]]


def test_a_poison_prompt_stands_alone_in_the_end(llm, gateway):
    def fail(request, call):
        if any(prompt.text == "poison" for prompt in request.prompts):
            raise InternalError("suspected", reason="REQUEST_SUSPECTED")
        yield from echo(request, call)

    gateway.scripts["GenerateBatch"] = fail
    with pytest.raises(PromptsFailedError) as caught:
        llm.generate(["a", "b", "poison", "d"], use_tqdm=False)
    assert caught.value.errors[2].reason == "REQUEST_SUSPECTED"
    assert texts(caught.value.outputs) == ["A", "B", None, "D"]


@pytest.mark.parametrize(
    "error", [QueueFullError("full", retry_after_s=0.01), ServiceUnavailableError("lost")]
)
def test_a_gateway_that_is_full_or_away_is_asked_again(llm, gateway, error, monkeypatch):
    monkeypatch.setattr(runner, "_PAUSE_S", 0.01)
    attempts = count(1)

    def come_later(request, call):
        yield response(output(0, "A"))
        if next(attempts) < 4:
            raise error
        for place in range(1, len(request.prompts)):
            yield response(output(place, "later"))

    gateway.scripts["GenerateBatch"] = come_later
    assert len(llm.generate(["a"] * 8, use_tqdm=False)) == 8
    assert [len(call.request.prompts) for call in gateway.calls] == [8, 7, 6, 5]


def test_patience_ends(gateway, monkeypatch):
    monkeypatch.setattr(runner, "_PAUSE_S", 0.01)

    def refuse(request, call):
        raise QueueFullError("full")
        yield

    gateway.scripts["GenerateBatch"] = refuse
    monkeypatch.setattr(runner.RunLimits.__init__, "__defaults__", (None, 0.05))
    with LLM(address=gateway.target) as llm, pytest.raises(PromptsFailedError) as caught:
        llm.generate(["a", "b"], use_tqdm=False)
    assert {error.reason for error in caught.value.errors.values()} == {"QUEUE_FULL"}


def test_a_timeout_ends_those_that_are_not_done_by_then(gateway):
    def hang(request, call):
        yield response(output(1, "B"))
        call.hang()

    gateway.scripts["GenerateBatch"] = hang
    with (
        LLM(address=gateway.target, timeout=0.5) as llm,
        pytest.raises(PromptsFailedError) as caught,
    ):
        llm.generate(["a", "b", "c"], use_tqdm=False)
    assert texts(caught.value.outputs) == [None, "B", None] and len(gateway.calls) == 1
    assert {error.reason for error in caught.value.errors.values()} == {"DEADLINE_EXCEEDED"}


def test_what_is_wrong_for_every_prompt_ends_the_call_at_once(llm, gateway):
    def refuse(request, call):
        raise UnauthenticatedError("a key, please")
        yield

    gateway.scripts["GenerateBatch"] = refuse
    with pytest.raises(UnauthenticatedError, match="a key, please"):
        llm.generate(["a"] * 1000, use_tqdm=False)
    gateway.scripts["GenerateBatch"] = echo
    assert texts(llm.generate("a", use_tqdm=False)) == ["A"]


def test_an_interrupt_cancels_what_runs_and_leaves_the_llm_usable(llm, gateway):
    def hang(request, call):
        gateway.wait_calls(2)
        if call is gateway.calls[0]:
            signal.raise_signal(signal.SIGINT)
        yield response(output(0, "A"))
        call.hang()

    gateway.scripts["GenerateBatch"] = hang
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"] * 128, use_tqdm=False)
    for call in gateway.calls:
        call.hang()
    assert not [t for t in threading.enumerate() if t.name.startswith("pagewire-batch")]
    gateway.scripts["GenerateBatch"] = echo
    assert texts(llm.generate("a", use_tqdm=False)) == ["A"]


def test_the_bar_counts_every_prompt_and_is_closed(llm, gateway):
    bar = MagicMock()
    bar.__enter__.return_value = bar
    bar.format_dict = {"elapsed": 1.0}
    make_bar = MagicMock(return_value=bar)
    gateway.scripts["GenerateBatch"] = refuse_bad
    with pytest.raises(PromptsFailedError):
        llm.generate(["a", "bad", "c"], use_tqdm=make_bar)
    assert make_bar.call_args.kwargs["total"] == 3
    assert [call.args for call in bar.update.call_args_list] == [(1,)] * 3
    assert bar.set_postfix_str.call_args.args == ("input: 4 toks/s, output: 2 toks/s",)
    bar.__exit__.assert_called_once()


def test_tqdm_shows_the_progress(llm, capfd):
    llm.generate(["a"] * 10)
    assert "10/10" in capfd.readouterr().err


def test_a_closed_llm_says_so(gateway):
    llm = LLM(address=gateway.target)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"address": "h:1", "max_model_len": 5}, TypeError),
        ({"api_key": "x"}, TypeError),
        ({"max_in_flight": 0, "address": "h:1"}, ValueError),
        ({"max_modl_len": 5}, TypeError),
        ({"max_num_seqs": "many"}, ValueError),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(options, error):
    with pytest.raises(error):
        LLM(**options)


def test_an_unknown_option_of_a_call_is_named(llm):
    with pytest.raises(TypeError, match="'cache_sallt'; did you mean 'cache_salt'"):
        llm.generate("a", cache_sallt="x")
