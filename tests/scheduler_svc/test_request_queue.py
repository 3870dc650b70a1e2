import random

import pytest

from scheduler_svc.request_queue import (
    FCFSRequestQueue,
    PriorityRequestQueue,
    create_request_queue,
)
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


# Priority.


def priority_queue_of(*requests):
    queue = PriorityRequestQueue()
    for request in requests:
        queue.add(request)
    return queue


def drain(queue):
    while queue:
        head = queue.peek()
        queue.remove(head)
        yield head


def test_a_lower_priority_then_an_earlier_arrival_then_a_smaller_id_goes_first():
    last = make_request(priority=3, arrival_time_s=0.0)
    late = make_request(priority=-1, arrival_time_s=5.0)
    early = [
        make_request(priority=-1, arrival_time_s=2.0, request_id=name) for name in ("b", "a", "c")
    ]
    queue = priority_queue_of(last, late, *early)
    expected = [early[1], early[0], early[2], late, last]
    assert list(queue) == expected
    assert list(drain(queue)) == expected


def test_a_preempted_or_resumed_request_has_no_privilege_under_priority():
    urgent = make_request(priority=0)
    resumed, preempted = make_request(priority=1, is_resumed=True), make_request(priority=1)
    queue = priority_queue_of(resumed, urgent)
    queue.prepend(preempted)
    assert list(queue) == [urgent, resumed, preempted]


def test_a_request_that_left_the_middle_of_the_heap_does_not_come_back():
    requests = [make_request(priority=number) for number in range(4)]
    queue = priority_queue_of(*requests)
    queue.remove(requests[1])
    assert requests[1] not in queue
    assert list(drain(queue)) == [requests[0], requests[2], requests[3]]


def test_an_id_that_comes_back_with_another_priority_stands_at_the_new_one():
    first, other = make_request(priority=5, request_id="a"), make_request(priority=3)
    queue = priority_queue_of(make_request(priority=0, request_id="z"), first, other)
    queue.remove(first)
    again = make_request(priority=9, request_id="a")
    queue.add(again)
    assert list(drain(queue))[1:] == [other, again]


def test_the_heap_does_not_grow_with_requests_that_left_its_middle():
    queue = priority_queue_of(make_request(priority=-1))
    for _ in range(1000):
        request = make_request(priority=1)
        queue.add(request)
        queue.remove(request)
    assert len(queue._heap) < 200


def test_the_heap_agrees_with_sorting_over_random_lives():
    chance, queue, waiting = random.Random(0), PriorityRequestQueue(), []
    for _ in range(2000):
        if waiting and chance.random() < 0.45:
            request = waiting.pop(chance.randrange(len(waiting)))
            queue.remove(request)
        else:
            request = make_request(1, priority=chance.randrange(3), arrival_time_s=chance.random())
            waiting.append(request)
            queue.add(request)
        waiting.sort(key=lambda r: (r.core_request.priority, r.core_request.arrival_time_s))
        assert len(queue) == len(waiting) == queue.num_tokens
        if waiting:
            assert queue.peek() is waiting[0]


def test_the_victim_is_the_least_urgent_and_of_those_the_latest():
    running = [
        make_request(priority=1, arrival_time_s=9.0),
        make_request(priority=2, arrival_time_s=3.0),
        make_request(priority=2, arrival_time_s=7.0),
        make_request(priority=2, arrival_time_s=5.0),
    ]
    assert PriorityRequestQueue().pick_victim(running) is running[2]
