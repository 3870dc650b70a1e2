"""The life of a worker: blank, initialized, with a KV cache, executing steps for one scheduler.

Owns the lease, the loaded model, the device thread's work and the order of it all. Knows no
protobuf and no streams: the servicer calls it, an Execute session holds what `begin_execute` gave.
Everything here runs on the event loop; what blocks is handed to the device thread.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagewire.kit.errors import (
    FailedPreconditionError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import TaskOwner
from worker_svc.calls import (
    InitializeCall,
    InitializeResult,
    KvCacheCall,
    RendezvousOpened,
    WorkerState,
    WorkerStatus,
    check_initialize_call,
    check_kv_cache_call,
)
from worker_svc.cpu_memory import free_memory_bytes
from worker_svc.device_thread import DeviceThread
from worker_svc.execution import Execution
from worker_svc.group_member import GroupMember, MembershipFactory, exit_stuck
from worker_svc.lease import Lease, LeaseManager
from worker_svc.memory import REASON, check_available, check_fits
from worker_svc.metrics import StepCounters
from worker_svc.model_load import LoadedModel, LoadProgress, ModelLoad
from worker_svc.profile_run import WorkerProfiles
from worker_svc.profiling import ProfileCall, ProfileResult, ProfilerFactory, make_profiler
from worker_svc.runners import RunnerFactory, describe_runner
from worker_svc.sleep import WorkerSleep, check_tags
from worker_svc.step_executor import StepExecutor, StepLimits
from worker_svc.torch_runtime import make_membership

log = get_logger("worker_svc.worker")

DEFAULT_LEASE_TIMEOUT_S = 10.0


class Worker:
    """One device's worker. `start`, then calls, then `shut_down`."""

    def __init__(
        self,
        make_runner: RunnerFactory,
        lease_timeout_s: float = DEFAULT_LEASE_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        *,
        host: str = "127.0.0.1",
        make_membership: MembershipFactory = make_membership,
        exit_stuck: Callable[[], object] = exit_stuck,
        num_replicas_here: int = 1,
        profiler_dir: Path | None = None,
        make_profiler: ProfilerFactory = make_profiler,
    ) -> None:
        """Prepare.

        Args:
            make_runner: Of a worker that is the only rank.
            lease_timeout_s: Silence after which the lease ends.
            clock: Seconds, monotonic.
            host: See `GroupMember`, as for the next two.
            make_membership: As above.
            exit_stuck: As above.
            num_replicas_here: Those that share this machine's memory, ours among them.
            profiler_dir: See `WorkerProfiles`, as for the next one.
            make_profiler: As above.
        """
        self.epoch = secrets.randbits(63) + 1
        self.lease_timeout_s = lease_timeout_s
        self.device = DeviceThread()
        self.counters = StepCounters()
        self._make_runner = make_runner
        self._num_replicas_here = num_replicas_here
        self._leases = LeaseManager(lease_timeout_s, clock)
        self._tasks = TaskOwner()
        self._load: ModelLoad | None = None
        self._model: LoadedModel | None = None
        self._limits: StepLimits | None = None
        self._kv_cache: KvCacheCall | None = None
        self._sleep = WorkerSleep(self.device)
        self._profiles = WorkerProfiles(self.device, self._tasks, profiler_dir, make_profiler)
        self._group_generation = 0
        self._group = GroupMember(self.device, host, make_membership, exit_stuck)
        self._execution: Execution | None = None
        self._release: asyncio.Task[None] | None = None
        self._shutting_down = False

    def start(self) -> None:
        self.device.start()

    def prepare(self, prepare_device: Callable[[], object]) -> None:
        """Run this on the device thread, before the work of any call."""
        self._tasks.spawn(self._prepare(prepare_device), name="prepare-device")

    async def initialize(
        self, call: InitializeCall
    ) -> AsyncGenerator[LoadProgress | RendezvousOpened | InitializeResult, None]:
        """Grant the lease and load the model; yields progress, then the result.

        With several ranks they meet when all have loaded; rank 0 says first where.

        If the caller goes away, the lease ends and the load goes on, for whoever asks next.

        Raises:
            PagewireError: The lease is held, the call is wrong, or the load failed. The worker
                stays up, blank or with the model that it has.
        """
        check_initialize_call(call)
        self._check_running()
        await self._supersede(call)
        lease = self._leases.grant(call.scheduler_id, call.epoch)
        try:
            with self._leases.in_use(lease):
                self._limits = None
                self._group_generation = call.group_generation
                reused = self._has_weights(call)
                self._cancel_other_load(call)
                rendezvous = await self._group.take_place(call.layout, call.config)
                if rendezvous is not None:
                    yield RendezvousOpened(rendezvous)
                async for progress in self._ensure_model(call):
                    yield progress
                await self._group.join(call.rendezvous)
                result = await self._initialize_result(lease, reused)
            log.info("initialized", scheduler_id=lease.scheduler_id, reused_weights=reused)
            yield result
        except BaseException:  # it failed, or the caller is gone
            self._group.cancel()
            self._leases.release(lease)
            raise

    async def allocate_kv_cache(self, call: KvCacheCall) -> int:
        """Allocate the KV cache and return its size in bytes.

        Raises:
            PagewireError: No valid lease, no model, a stream is open, or too little memory.
        """
        with self._leases.in_use(call.lease):
            model = self._model
            if model is None or self._execution is not None:
                raise FailedPreconditionError(
                    "AllocateKvCache comes after Initialize and before Execute",
                    reason="WRONG_ORDER",
                )
            check_kv_cache_call(call, model)
            self._limits = None
            num_bytes = call.num_blocks * model.runner.kv_bytes_per_block(call.block_size)
            await self.device.run(lambda: _allocate(model, call))
            self._kv_cache = call
            self._limits = StepLimits(
                num_blocks=call.num_blocks,
                block_size=call.block_size,
                max_model_len=call.max_model_len,
                vocab_size=model.info.vocab_size,
                max_num_batched_tokens=model.config.scheduler.max_num_batched_tokens,
                num_groups=model.info.num_kv_cache_groups,
                tokens_come_late=not self._group.layout.is_last_stage,
            )
        log.info("kv_cache_allocated", num_blocks=call.num_blocks, kv_cache_bytes=num_bytes)
        return num_bytes

    @contextmanager
    def execution(self, lease: Lease, group_generation: int) -> Iterator[Execution]:
        """The right to execute steps, for the life of an Execute stream.

        At its end steps that have not begun are dropped, and the lease ends once the one that runs
        is done.

        Raises:
            FailedPreconditionError: No valid lease, no KV cache, a stream is open already, or the
                group's generation is not that of Initialize.
        """
        self._check_running()
        self._leases.check(lease)
        if self._model is None or self._limits is None or self._execution is not None:
            message = "Execute comes after AllocateKvCache, once for each Initialize"
            raise FailedPreconditionError(message, reason="WRONG_ORDER")
        if group_generation != self._group_generation:
            message = f"the group's generation is {self._group_generation}, not {group_generation}"
            raise FailedPreconditionError(message, reason="WRONG_GENERATION")
        device = self.device
        executor = StepExecutor(
            self._model.runner,
            self._limits,
            lambda: device.idle_ns,
            lambda: device.queue_ns,
            self._profiles.step,
        )
        execution = Execution(lease, executor, self.device, counters=self.counters)
        with self._leases.in_use(lease):
            self._execution = execution
            log.info("execute_opened", scheduler_id=lease.scheduler_id)
            try:
                yield execution
            finally:
                self._end_execution(execution)

    async def sleep(self, lease: Lease, level: int) -> None:
        """Free memory for the holder of the lease, who sends no step until `wake_up`.

        Raises:
            PagewireError: No valid lease, no KV cache, a request is known or a step under way, or
                there is no such level.
        """
        with self._leases.in_use(lease):
            await self._profiles.interrupt()  # before the checks: steps may come meanwhile
            model, execution = self._model, self._execution
            if model is None or self._limits is None:
                message = "Sleep comes after AllocateKvCache"
                raise FailedPreconditionError(message, reason="WRONG_ORDER")
            if execution is not None and not execution.is_idle:
                message = "the worker has requests: finish or preempt them first"
                raise FailedPreconditionError(message, reason="NOT_IDLE")
            await self._sleep.fall_asleep(model, level)

    async def wake_up(self, lease: Lease, tags: Collection[str]) -> bool:
        """End a sleep, or a part of it; the KV cache is as large as it was, and empty.

        Returns:
            Whether something still sleeps.

        Raises:
            PagewireError: No valid lease, nothing that could sleep, or see `WorkerSleep.wake_up`.
        """
        with self._leases.in_use(lease):
            model, kv_cache = self._model, self._kv_cache
            if model is None or kv_cache is None:
                raise FailedPreconditionError("no model is loaded", reason="WRONG_ORDER")
            await self._sleep.wake_up(model, tags, lambda: _allocate(model, kv_cache))
            return self._sleep.is_sleeping

    async def sleep_unheld(self, level: int) -> None:
        """Free the memory of weights that are kept for no scheduler; without any, do nothing.

        Raises:
            PagewireError: A scheduler holds this worker, or there is no such level.
        """
        self._require_unheld()
        await self._profiles.interrupt()
        model = self._require_unheld()  # again: a scheduler may have come meanwhile
        if model is not None:
            await self._sleep.fall_asleep(model, level)

    async def wake_up_unheld(self, tags: Collection[str]) -> None:
        """Load the weights again, for a scheduler that comes.

        Raises:
            PagewireError: A scheduler holds this worker, there is no such tag, or the weights
                cannot be loaded.
        """
        check_tags(tags)
        model = self._require_unheld()
        if model is not None:
            await self._sleep.wake_weights(model)

    async def start_profile(self, call: ProfileCall) -> Path:
        """Profile the steps that follow; Initialize and Sleep end it before its limits do.

        Returns:
            Where the trace is going to be.

        Raises:
            PagewireError: No model is awake, or see `WorkerProfiles.start`.
        """
        self._check_running()
        if self._model is None or self._load is not None or self._sleep.is_sleeping:
            message = "the worker has no model to profile yet: wait until its scheduler is ready"
            raise FailedPreconditionError(message, reason="WRONG_ORDER")
        device = self._model.config.device.device
        kind = device if device == "sim" else self._model.info.device
        return await self._profiles.start(call, kind, self._group.layout.rank)

    async def profile_result(self, *, wait: bool) -> ProfileResult:
        """The outcome of a profile; see `WorkerProfiles.result`."""
        return await self._profiles.result(wait=wait)

    def status(self) -> WorkerStatus:
        holder = self._leases.holder
        execution = self._execution
        return WorkerStatus(
            worker_epoch=self.epoch,
            state=self._state(),
            lease_holder=holder.scheduler_id if holder is not None else "",
            config_digest=self._model.digest.partition("/")[0] if self._model is not None else "",
            num_requests=execution.executor.num_requests if execution is not None else 0,
        )

    async def shut_down(self, timeout_s: float) -> None:
        """Let the step in flight end and its answer go out, then stop the device thread."""
        self._shutting_down = True
        if self._load is not None:
            self._load.cancel()
        if self._execution is not None:
            await self._execution.stop_and_wait(timeout_s)
        await self._profiles.close(timeout_s)
        if not await self.device.close(timeout_s):
            log.warning("device_still_busy", waited_s=timeout_s)
        await self._tasks.close()

    async def _prepare(self, prepare_device: Callable[[], object]) -> None:
        try:
            await self.device.run(prepare_device)
        except Exception as error:
            # Whoever asks for a model meets it again, and is told.
            log.info("device_not_prepared", exc_info=error)

    def _state(self) -> WorkerState:
        if self._load is not None:
            return WorkerState.INITIALIZING
        if self._model is None:
            return WorkerState.BLANK
        if self._sleep.is_sleeping:
            return WorkerState.SLEEPING
        return WorkerState.LOADED if self._limits is None else WorkerState.READY

    def _require_unheld(self) -> LoadedModel | None:
        holder = self._leases.holder
        if holder is not None or self._load is not None:
            raise FailedPreconditionError(
                "a scheduler holds this worker: use Sleep and WakeUp of its EngineAdminService",
                reason="LEASE_HELD",
                metadata={"holder": holder.scheduler_id} if holder is not None else None,
            )
        return self._model

    def _check_running(self) -> None:
        if self._shutting_down:
            raise ServiceUnavailableError("the worker is shutting down", reason="SHUTTING_DOWN")

    async def _supersede(self, call: InitializeCall) -> None:
        """End the caller's own earlier stream, and wait a bounded time for a lease that is ending.

        A scheduler calls Initialize again when it has given its stream up; the worker may not have
        noticed yet.
        """
        execution = self._execution
        if execution is not None:
            holder = execution.lease
            if (holder.scheduler_id, holder.epoch) == (call.scheduler_id, call.epoch):
                await execution.stop_and_wait(self.lease_timeout_s)
        if self._release is not None and not self._release.done():
            _, running = await asyncio.wait({self._release}, timeout=self.lease_timeout_s)
            if running:
                message = "the worker is still busy with a step of an earlier lease"
                raise ServiceUnavailableError(message, reason="STEP_IN_FLIGHT")

    async def _ensure_model(self, call: InitializeCall) -> AsyncIterator[LoadProgress]:
        """Have the model of the call loaded and without requests; joins a load of the same one."""
        await self._profiles.interrupt()  # a load measures itself with the same profiler
        if self._load is not None and self._load.digest != call.model_digest:
            async for progress in _ignoring_failure(self._load):
                yield progress
        if self._load is None and self._model is not None:
            if self._has_weights(call):
                await self._sleep.wake_weights(self._model)
                await self.device.run(self._model.runner.reset)
                self._sleep.forget()
                return
            await self._drop_model()
        self._sleep.forget()
        load = self._load or self._start_load(call)
        async for progress in load.watch():
            yield progress

    def _has_weights(self, call: InitializeCall) -> bool:
        same = self._model is not None and self._model.digest == call.model_digest
        return same and not self._sleep.has_dropped_weights

    def _cancel_other_load(self, call: InitializeCall) -> None:
        """It keeps the device thread busy for nobody."""
        if self._load is not None and self._load.digest != call.model_digest:
            self._load.cancel()

    async def _drop_model(self) -> None:
        """Free the model before the next one is loaded: both may not fit."""
        model, self._model = self._model, None
        if model is not None:
            await self.device.run(model.runner.reset)

    def _start_load(self, call: InitializeCall) -> ModelLoad:
        make_runner = self._make_runner if call.world_size == 1 else self._group.make_runner
        load = ModelLoad(call.config, call.model_digest, make_runner)
        self._load = load
        self._tasks.spawn(self._finish_load(load), name="model-load")
        return load

    async def _finish_load(self, load: ModelLoad) -> None:
        try:
            self._model = await load.run(self.device)
        finally:
            self._load = None

    async def _initialize_result(self, lease: Lease, reused: bool) -> InitializeResult:
        model = self._model
        if model is None:
            raise ServiceUnavailableError("the load was ended", reason="LOAD_CANCELLED")
        available_bytes = await self.device.run(model.runner.available_kv_bytes)
        description = describe_runner(model.config, model.info)
        if description.needs_memory and model.config.cache.kv_cache_memory_bytes is None:
            available_bytes //= self._num_replicas_here  # each has seen the same free memory
        check_available(available_bytes, model.bytes_per_block)
        return InitializeResult(lease, model, description, available_bytes, self.epoch, reused)

    def _end_execution(self, execution: Execution) -> None:
        """The stream has ended, for whatever reason."""
        execution.end()
        self._execution = None
        self._limits = None
        self._release = self._tasks.spawn(self._release_lease(execution), name="release-lease")

    async def _release_lease(self, execution: Execution) -> None:
        """End the lease once the device has no step of its holder any more."""
        try:
            await self._group.leave()
            await self.device.run(lambda: None)
        except ServiceUnavailableError:
            log.debug("device_closed_before_release")
        finally:
            self._leases.release(execution.lease)
            log.info("lease_ended", scheduler_id=execution.lease.scheduler_id)


def _allocate(model: LoadedModel, call: KvCacheCall) -> None:
    """Runs on the device thread."""
    model.runner.reset()
    if describe_runner(model.config, model.info).needs_memory:
        bytes_per_block = model.runner.kv_bytes_per_block(call.block_size)
        check_fits(call.num_blocks, bytes_per_block, free_memory_bytes())
    try:
        model.runner.allocate_kv_cache(call.num_blocks, call.block_size)
    except MemoryError as error:
        message = "the KV cache does not fit into memory: set --kv-cache-memory-bytes lower"
        raise FailedPreconditionError(message, reason=REASON) from error


async def _ignoring_failure(load: ModelLoad) -> AsyncIterator[LoadProgress]:
    """Progress of a load whose outcome matters to nobody."""
    try:
        async for progress in load.watch():
            yield progress
    except PagewireError:
        return  # it was logged, and the load that follows has an outcome of its own
