"""Outputs of direct clients as messages."""

from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.convert.outputs import generate_response
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.stop import FinishReason


def test_every_finish_reason_has_a_wire_value():
    for reason in FinishReason:
        end = FinishedRequest("a", reason, 1, 1, 0)
        assert generate_response(DirectOutput(end=end)).finish_reason != 0
