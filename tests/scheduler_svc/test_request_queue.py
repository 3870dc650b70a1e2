import pytest

from scheduler_svc.request_queue import FCFSRequestQueue, create_request_queue
from tests.scheduler_svc.factories import make_request


def queue_of(*requests):
    queue = FCFSRequestQueue()
    for request in requests:
        queue.add(request)
    return queue


def test_first_come_is_first_served():
    first, second = make_request(), make_request()
    queue = queue_of(first, second)
    assert queue.peek() is first
    assert list(queue) == [first, second]


def test_a_preempted_request_goes_to_the_very_front():
    resumed, preempted = make_request(is_resumed=True), make_request()
    queue = queue_of(resumed)
    queue.prepend(preempted)
    assert list(queue) == [preempted, resumed]


def test_resumed_requests_go_before_new_ones_in_their_own_order():
    new = make_request()
    resumed = [make_request(is_resumed=True) for _ in range(3)]
    assert list(queue_of(new, *resumed)) == [*resumed, new]


def test_a_request_can_leave_the_middle():
    requests = [make_request() for _ in range(3)]
    queue = queue_of(*requests)
    queue.remove(requests[1])
    assert list(queue) == [requests[0], requests[2]]
    assert requests[1] not in queue


def test_the_queue_counts_requests_and_prompt_tokens():
    first, second = make_request(5), make_request(7)
    queue = queue_of(first, second)
    assert (len(queue), queue.num_tokens) == (2, 12)
    queue.remove(first)
    assert (len(queue), queue.num_tokens) == (1, 7)


def test_the_last_running_request_is_the_victim():
    running = [make_request() for _ in range(3)]
    assert FCFSRequestQueue().pick_victim(running) is running[-1]


def test_an_empty_queue_has_no_head():
    with pytest.raises(IndexError):
        FCFSRequestQueue().peek()


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="must be one of fcfs"):
        create_request_queue("lottery")
