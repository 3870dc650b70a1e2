import pytest

from pagewire.kit.errors import InvalidRequestError, QueueFullError
from scheduler_svc.admission import check_queue, check_request
from scheduler_svc.request_queue import FCFSRequestQueue
from tests.scheduler_svc.factories import VOCAB_SIZE, make_core_request, make_limits, make_request


def refused(request, **limits):
    with pytest.raises(InvalidRequestError) as error:
        check_request(request, make_limits(**limits))
    return error.value


def test_an_ordinary_request_passes():
    check_request(make_core_request(), make_limits())


def test_an_empty_prompt_is_refused():
    assert refused(make_core_request([])).reason == "EMPTY_PROMPT"


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_a_token_id_out_of_vocabulary_is_refused(token_id):
    assert refused(make_core_request([1, token_id])).field == "prompt_token_ids"


def test_a_stop_token_id_out_of_vocabulary_is_refused():
    assert refused(make_core_request(stop_token_ids=(VOCAB_SIZE,))).field == "stop_token_ids"


def test_a_prompt_that_fills_the_context_is_refused():
    error = refused(make_core_request(16), max_model_len=16)
    assert error.reason == "PROMPT_TOO_LONG"
    assert "maximum context length is 16" in str(error)


def test_a_prompt_one_token_short_of_the_context_passes():
    check_request(make_core_request(15), make_limits(max_model_len=16))


def test_a_request_that_can_never_fit_the_pool_is_refused():
    error = refused(make_core_request(10, max_tokens=12), num_blocks=6)
    assert error.reason == "EXCEEDS_KV_CACHE"


def test_the_last_token_needs_no_slot():
    check_request(make_core_request(10, max_tokens=11), make_limits(num_blocks=6))


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_gives_are_refused(name):
    check_request(make_core_request(**{name: 5}), make_limits(max_logprobs=5))
    assert refused(make_core_request(**{name: 6}), max_logprobs=5).field == name


def test_a_priority_without_priority_scheduling_is_refused():
    assert refused(make_core_request(priority=1)).field == "priority"


def test_output_tokens_without_being_resumed_are_refused():
    assert refused(make_core_request(output_token_ids=[1])).reason == "NOT_RESUMED"


def test_a_resumed_request_that_is_complete_is_refused():
    request = make_core_request(5, output_token_ids=[1, 2], is_resumed=True, max_tokens=2)
    assert refused(request).reason == "ALREADY_COMPLETE"


def queue_of(*num_prompt_tokens):
    queue = FCFSRequestQueue()
    for number in num_prompt_tokens:
        queue.add(make_request(number))
    return queue


def test_a_queue_with_too_many_requests_is_full():
    with pytest.raises(QueueFullError) as error:
        check_queue(make_core_request(), queue_of(5, 5), make_limits(max_num_queued_requests=2))
    assert error.value.retry_after_s


def test_a_queue_with_too_many_tokens_is_full():
    limits = make_limits(max_num_queued_tokens=20)
    with pytest.raises(QueueFullError):
        check_queue(make_core_request(11), queue_of(10), limits)
    check_queue(make_core_request(10), queue_of(10), limits)


def test_a_request_above_the_token_limit_passes_when_nothing_waits():
    check_queue(make_core_request(30), queue_of(), make_limits(max_num_queued_tokens=20))


def test_a_resumed_request_passes_a_full_queue():
    limits = make_limits(max_num_queued_requests=1)
    check_queue(make_core_request(is_resumed=True), queue_of(5), limits)
