from __future__ import annotations

from scheduler_svc.step_plan import StepPlan, new_request_data
from tests.scheduler_svc.factories import make_request


def test_rows_take_from_the_budget_and_give_back_what_they_took() -> None:
    plan, first, second = StepPlan(token_budget=10), make_request(), make_request()
    plan.add_cached(first, 3, [5])
    plan.add_cached(second, 1, [])
    assert plan.token_budget == 6
    assert plan.remove(first)
    assert plan.token_budget == 9
    assert (plan.requests, plan.num_scheduled_tokens) == ([second], [1])
    cached = plan.cached_requests()
    assert (cached.request_ids, cached.new_block_ids) == ([second.request_id], [[]])


def test_a_request_that_is_not_in_the_step_cannot_be_taken_out() -> None:
    plan = StepPlan(token_budget=10)
    assert not plan.remove(make_request())
    assert plan.token_budget == 10


def test_a_new_row_carries_prompt_and_output_apart() -> None:
    request = make_request([1, 2, 3], output_token_ids=[4, 5])
    data = new_request_data(request, [7])
    assert (list(data.prompt_token_ids), list(data.output_token_ids)) == ([1, 2, 3], [4, 5])
    assert list(data.block_ids) == [7]
