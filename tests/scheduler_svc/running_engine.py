"""An engine over a fake executor, and a client that listens."""

import asyncio
from contextlib import asynccontextmanager

from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from tests.scheduler_svc.factories import make_core_request
from tests.scheduler_svc.fakes import FakeClient, FakeExecutor, make_config

PROMPT = [1, 2, 3, 4, 5, 6]


async def no_sleep(delay_s):
    await asyncio.sleep(0)


class Engine:
    def __init__(self, config=None, executor=None):
        self.executor = executor or FakeExecutor()
        self.core = EngineCore(config or make_config(), self.executor, sleep=no_sleep)
        self.states = []
        self.core.on_state = self._on_state
        self._changed = asyncio.Event()
        self.client = FakeClient()
        self.client_id = self.core.attach(self.client)

    def _on_state(self, state):
        self.states.append(state)
        self._changed.set()

    async def wait_state(self, state, times=1):
        """Wait until the engine has come into a state so many times."""
        async with asyncio.timeout(10):
            while self.states.count(state) < times:
                self._changed.clear()
                await self._changed.wait()

    def add(self, prompt=PROMPT, **overrides):
        request = make_core_request(prompt, client_id=self.client_id, **overrides)
        self.core.add_request(request)
        return request.request_id


@asynccontextmanager
async def running(engine=None):
    engine = engine or Engine()
    task = asyncio.create_task(engine.core.run())
    try:
        await engine.wait_state(EngineState.READY)
        yield engine
    finally:
        task.cancel()
        await asyncio.wait((task,))
