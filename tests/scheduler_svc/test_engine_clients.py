"""Who hears what of an engine, and what happens to that for a client that has gone."""

from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.engine_clients import EngineClients, going_away
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason


class Sink:
    def __init__(self, on_any=lambda: None):
        self.heard = []
        self._on_any = on_any

    def __getattr__(self, name):
        def hear(*args):
            self.heard.append((name, *args))
            self._on_any()

        return hear


def test_each_client_gets_what_is_its_own():
    clients, one, two = EngineClients(), Sink(), Sink()
    first, second = clients.add(one), clients.add(two)
    assert first != second
    outputs, end = EngineCoreOutputs(1), FinishedRequest("r", FinishReason.STOP, 1, 1, 0)
    clients.put_outputs({second: outputs}, StepTimings())
    clients.put_finished({second: [end]})
    clients.put_admitted(second, "r")
    assert one.heard == []
    assert [call[0] for call in two.heard] == ["put_outputs", "put_finished", "put_admitted"]


def test_what_is_for_a_client_that_has_gone_is_dropped():
    clients, sink = EngineClients(), Sink()
    client_id = clients.add(sink)
    clients.remove(client_id)
    clients.remove(client_id)
    clients.put_outputs({client_id: EngineCoreOutputs(1)}, StepTimings())
    clients.put_finished({client_id: []})
    clients.put_admitted(client_id, "r")
    clients.set_recovering(True)
    assert sink.heard == []


def test_a_client_may_go_while_all_are_told():
    clients = EngineClients()
    ids = []
    leaving = Sink(lambda: clients.remove(ids[0]))
    ids.append(clients.add(leaving))
    staying = Sink()
    clients.add(staying)
    clients.set_draining(1.0)
    clients.set_draining(0.5)
    assert leaving.heard == [("set_draining", 1.0)]
    assert staying.heard == [("set_draining", 1.0), ("set_draining", 0.5)]


def test_each_client_ends_with_an_error_of_its_own():
    clients, one, two = EngineClients(), Sink(), Sink()
    clients.add(one)
    clients.add(two)
    clients.end(going_away)
    ((_, first),), ((_, second),) = one.heard, two.heard
    assert first is not second
    assert (first.reason, second.reason) == ("DRAINING", "DRAINING")
