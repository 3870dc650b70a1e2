"""What ends with an error is let go of at once, also when no garbage is collected."""

import asyncio
import gc
import weakref

import pytest

from pagewire.kit.errors import PagewireError, ServiceUnavailableError
from pagewire.v1 import scheduler_pb2
from scheduler_svc.direct_client import DirectClient
from scheduler_svc.engine_state import EngineState
from scheduler_svc.engine_streams import EngineStreams, SchedulerIdentity
from scheduler_svc.executor import WorkerLostError
from scheduler_svc.worker_group import _all
from tests.scheduler_svc.running_engine import running


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["ended by the engine", "write failed", "gateway failed"])
async def test_a_stream_that_ends_with_an_error(how, no_collector):
    async with running() as engine:
        streams = EngineStreams(engine.core, SchedulerIdentity("scheduler", 1))
        reading = asyncio.Event()

        async def frames():
            opened = scheduler_pb2.EngineStreamOpen(gateway_id="g", gateway_epoch=1, generation=1)
            yield scheduler_pb2.EngineStreamRequest(open=opened)
            reading.set()
            if how == "gateway failed":
                raise ServiceUnavailableError("broken")
            await asyncio.Event().wait()

        async def write(frame):
            if how == "write failed":
                raise ServiceUnavailableError("broken")

        serving = asyncio.create_task(streams.serve(frames(), write))
        await reading.wait()
        session = weakref.ref(streams._sessions["g"])
        if how == "ended by the engine":
            session().end(ServiceUnavailableError("over"))
        await asyncio.wait((serving,))
        assert isinstance(serving.exception(), ServiceUnavailableError)
        del serving
        assert session() is None


async def _fail():
    raise WorkerLostError("lost")


async def _wait():
    await asyncio.Event().wait()


@pytest.mark.parametrize("ranks", [(_fail,), (_fail, _wait), (_wait, _fail)])
async def test_what_a_group_of_ranks_failed_with(ranks, no_collector):
    with pytest.raises(WorkerLostError) as caught:
        await _all(rank() for rank in ranks)
    failure = weakref.ref(caught.value)
    del caught
    await asyncio.sleep(0)  # the loop lets go of its callbacks
    assert failure() is None


async def test_a_direct_client_that_the_engine_lets_go_of(no_collector):
    async with running() as engine:
        assert engine.states[-1] is EngineState.READY
        client = DirectClient(engine.core)
        client.end(ServiceUnavailableError("over"))
        with pytest.raises(PagewireError, match="over"):
            client.take()
        client.close()
        client = weakref.ref(client)
        assert client() is None
