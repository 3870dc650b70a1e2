"""Tests of policies and of the attempts that they allow, under a clock that is moved by hand."""

from __future__ import annotations

import json

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from pagewire.client.retry_policy import ONE_ATTEMPT, Attempts, RetryPolicy, read_policies
from pagewire.client.transport import service_config
from pagewire.errors import PagewireError, QueueFullError, ServiceUnavailableError
from pagewire.kit.errors import DETAILS_KEY, to_rpc_status

SERVICE = "pagewire.v1.InferenceService"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CANCELLED = grpc.StatusCode.CANCELLED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
POLICY = RetryPolicy(5, 1.0, 5.0, 2.0, frozenset({UNAVAILABLE, EXHAUSTED}))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def foreign(code: grpc.StatusCode) -> AioRpcError:
    """A failure that the transport tells."""
    return AioRpcError(code, Metadata(), Metadata(), "lost")


def told(exc: PagewireError) -> AioRpcError:
    """A failure that a gateway tells."""
    details = Metadata((DETAILS_KEY, to_rpc_status(exc).SerializeToString()))
    return AioRpcError(exc.code, Metadata(), details, exc.message)


def pauses(attempts: Attempts, error: AioRpcError) -> list[float]:
    return list(iter(lambda: attempts.pause_s(error), None))


def test_the_shipped_config_has_a_policy_for_each_of_its_methods():
    policies = read_policies(service_config(), SERVICE)
    assert {"Generate", "Chat", "ListModels"} <= set(policies)
    assert policies["Chat"] == RetryPolicy(5, 0.2, 3.0, 2.5, frozenset({UNAVAILABLE, CANCELLED}))


def test_only_the_named_methods_of_the_service_have_a_policy():
    policy = json.loads(service_config())["methodConfig"][0]["retryPolicy"]
    names = [{"service": SERVICE, "method": "Chat"}, {"service": "other", "method": "Get"}]
    without = [{"service": SERVICE, "method": "Embed"}]
    config = {"methodConfig": [{"name": names, "retryPolicy": policy}, {"name": without}]}
    assert list(read_policies(json.dumps(config), SERVICE)) == ["Chat"]


def test_pauses_grow_up_to_a_bound_and_end_with_the_attempts():
    means = [1.0, 2.0, 4.0, 5.0]
    rows = [pauses(Attempts(POLICY, None), foreign(UNAVAILABLE)) for _ in range(50)]
    for row in rows:
        assert len(row) == 4
        assert all(abs(pause - mean) <= 0.2 * mean for pause, mean in zip(row, means, strict=True))
    assert len({row[0] for row in rows}) > 1  # calls that failed together are spread


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED]
)
def test_what_the_policy_does_not_name_is_final(code):
    assert Attempts(POLICY, None).pause_s(foreign(code)) is None


def test_without_a_policy_there_is_one_attempt():
    assert Attempts(ONE_ATTEMPT, None).pause_s(foreign(UNAVAILABLE)) is None


@pytest.mark.parametrize("error", [ServiceUnavailableError, QueueFullError])
def test_no_attempt_is_made_before_the_server_asked_for_it(error):
    row = pauses(Attempts(POLICY, None), told(error("later", retry_after_s=7.0)))
    assert len(row) == 4 and all(7.0 <= pause <= 1.2 * 7.0 for pause in row)


def test_what_is_full_is_tried_again_only_if_it_says_when():
    assert Attempts(POLICY, None).pause_s(told(QueueFullError("full"))) is None
    assert Attempts(POLICY, None).pause_s(foreign(EXHAUSTED)) is None


def test_all_attempts_share_the_time_of_the_call():
    clock = Clock()
    attempts = Attempts(POLICY, 10.0, clock)
    assert attempts.timeout_s() == 10.0
    clock.now += 4.0
    assert attempts.timeout_s() == 6.0
    clock.now += 7.0
    assert attempts.timeout_s() == 0.0
    assert Attempts(POLICY, None, clock).timeout_s() is None


def test_a_pause_that_outlasts_the_time_is_not_begun():
    clock = Clock()
    later = told(ServiceUnavailableError("later", retry_after_s=3.0))
    attempts = Attempts(POLICY, 10.0, clock)
    assert attempts.pause_s(later) is not None
    clock.now += 7.5
    assert attempts.pause_s(later) is None
    assert Attempts(POLICY, 1000.0, clock).pause_s(
        told(ServiceUnavailableError("much later", retry_after_s=300.0))
    )


def test_without_a_deadline_no_server_holds_a_call_for_long():
    error = told(ServiceUnavailableError("much later", retry_after_s=300.0))
    assert Attempts(POLICY, None).pause_s(error) is None
