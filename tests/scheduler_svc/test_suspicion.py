from __future__ import annotations

from scheduler_svc.suspicion import ALONE, FINAL, Suspects, final
from tests.scheduler_svc.factories import make_core_request, make_request, make_scheduler


def test_the_third_suspicion_is_final() -> None:
    suspects, request = Suspects(), make_request()
    verdicts = [suspects.suspect([request]) for _ in range(FINAL)]
    assert verdicts == [{request.request_id: count} for count in (1, 2, 3)]
    assert [final(verdict) for verdict in verdicts] == [[], [], [request.request_id]]


def test_a_request_that_gets_past_its_token_is_acquitted() -> None:
    suspects, request = Suspects(), make_request()
    suspects.suspect([request])
    suspects.clear_passed([request])
    assert len(suspects) == 1
    request.append_output_token(5)
    suspects.clear_passed([request])
    assert len(suspects) == 0


def test_a_request_suspected_twice_joins_nobody_and_nobody_joins_it() -> None:
    suspects, suspect, other = Suspects(), make_request(), make_request()
    suspects.add(suspect, ALONE)
    assert suspects.may_join(suspect, [])
    assert not suspects.may_join(suspect, [other])
    assert not suspects.may_join(other, [suspect])
    assert suspects.may_join(other, [make_request()])


def test_requests_of_two_lost_steps_run_one_by_one_until_they_are_acquitted() -> None:
    scheduler = make_scheduler()
    for _ in range(3):
        scheduler.add_request(make_core_request(), 0.0)
    for _ in range(2):
        output = scheduler.schedule(0.0)
        assert len(output.requests) == 3
        assert final(scheduler.suspect_steps([output])) == []
        scheduler.forget_worker()
    assert len(scheduler.schedule(0.0).requests) == 1
    scheduler.check_integrity()


def test_suspicions_of_another_engine_count() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_core_request(request_id="poison", num_suspicions=FINAL - 1), 0.0)
    assert final(scheduler.suspect_steps([scheduler.schedule(0.0)])) == ["poison"]
