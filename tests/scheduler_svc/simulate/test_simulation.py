import pytest

from scheduler_svc.simulate.routing import RoundRobin
from scheduler_svc.simulate.simulation import Simulation
from tests.scheduler_svc.simulate.factories import make_engine, make_trace_request


def run(engines, *requests):
    Simulation(engines, RoundRobin()).run(requests)
    return [engine.close() for engine in engines]


def test_a_request_alone_takes_the_steps_that_it_needs():
    (measures,) = run([make_engine()], make_trace_request(5.0, num_prompt=8, num_output=3))
    # 10 ms a step and 1 ms a token: 18 ms for the prompt, then 11 ms for each further token.
    assert measures.ttft_s.mean == pytest.approx(0.018)
    assert measures.e2e_s.mean == pytest.approx(0.040)
    assert (measures.num_finished, measures.num_output_tokens) == (1, 3)


def test_replicas_take_turns():
    requests = [make_trace_request(0.0) for _ in range(6)]
    measures = run([make_engine() for _ in range(3)], *requests)
    assert [one.num_finished for one in measures] == [2, 2, 2]


def test_replicas_run_side_by_side():
    requests = [make_trace_request(0.0, num_prompt=60) for _ in range(4)]
    (one,) = run([make_engine()], *requests)
    two = run([make_engine() for _ in range(2)], *requests)
    assert max(measures.end_s for measures in two) < one.end_s


def test_requests_of_one_moment_are_in_one_step():
    (measures,) = run([make_engine()], *[make_trace_request(1.0, 4, 1) for _ in range(3)])
    assert measures.num_steps == 2  # the second only tells the worker that they ended


def test_a_request_that_can_never_fit_is_refused_and_the_rest_goes_on():
    requests = [
        make_trace_request(num_prompt=256),
        make_trace_request(num_prompt=100_000_000),
        make_trace_request(num_prompt=200, num_output=50),
        make_trace_request(),
    ]
    (measures,) = run([make_engine(num_blocks=20)], *requests)
    assert measures.refusals == {"PROMPT_TOO_LONG": 2, "EXCEEDS_KV_CACHE": 1}
    assert measures.num_finished == 1


def test_requests_that_find_the_queue_full_stand_outside():
    requests = [make_trace_request() for _ in range(50)]
    (measures,) = run([make_engine(max_num_queued_requests=5, max_num_seqs=2)], *requests)
    assert (measures.num_finished, measures.num_rejected) == (50, 0)


def test_or_are_rejected():
    requests = [make_trace_request() for _ in range(50)]
    engine = make_engine(max_num_queued_requests=5, max_num_seqs=2, reject=True)
    (measures,) = run([engine], *requests)
    assert measures.num_rejected > 0
    assert measures.num_finished + measures.num_rejected == 50


def test_standing_outside_changes_no_latency():
    requests = [make_trace_request(0.001 * number) for number in range(50)]
    (narrow,) = run([make_engine(max_num_queued_requests=3, max_num_seqs=2)], *requests)
    (wide,) = run([make_engine(max_num_queued_requests=100, max_num_seqs=2)], *requests)
    shares = (0.1, 0.5, 0.9, 1.0)
    assert narrow.ttft_s.quantiles(shares) == wide.ttft_s.quantiles(shares)
    assert narrow.e2e_s.quantiles(shares) == wide.e2e_s.quantiles(shares)


def test_a_shared_prefix_is_computed_once():
    shared = {"shared_prefix_id": "p", "num_shared_prefix_tokens": 32}
    requests = [make_trace_request(float(n), num_prompt=40, **shared) for n in range(4)]
    (measures,) = run([make_engine()], *requests)
    assert measures.num_cached_tokens == 3 * 32


def test_nothing_is_left_of_finished_requests():
    engine = make_engine(max_steps_in_flight=2)
    run([engine], *[make_trace_request(0.01 * number) for number in range(20)])
    assert (engine.num_unfinished, engine.num_waiting) == (0, 0)
    assert engine.end_of_step_s is None
