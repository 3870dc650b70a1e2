"""What wakes an event loop for grpc.aio, in a process of its own: the change is for all of it."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from pagewire.kit.completion_wakeups import _Pipes, let_completions_gather

SCRIPT = """
    import asyncio

    import grpc

    from pagewire.kit.completion_wakeups import _End, cheapen_wakeups

    reads = []
    read_all = _End.recv

    def counted(end, num_bytes):
        data = read_all(end, num_bytes)
        reads.append(len(data))
        return data

    async def answer(request, context):
        for _ in range(10):
            await context.write(request)

    async def ask(channel):
        return [each async for each in channel.unary_stream("/echo/ten")(b"x")]

    async def main():
        _End.recv = counted
        cheapen_wakeups()
        cheapen_wakeups()
        handlers = {"ten": grpc.unary_stream_rpc_method_handler(answer)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answers = await asyncio.gather(*(ask(channel) for _ in range(50)))
        await server.stop(0)
        assert answers == [[b"x"] * 10] * 50
        print(len(reads), sum(reads))

    asyncio.run(main())
"""


def test_a_loop_wakes_less_often_than_operations_complete():
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    num_wakeups, num_operations = map(int, done.stdout.split())
    assert num_operations >= 2 * 50 * 10  # each message is written and read
    assert num_wakeups < num_operations


def test_an_end_reads_all_that_is_there():
    reading, writing = _Pipes.socketpair()
    reading.setblocking(False)
    with open(writing.fileno(), "wb", buffering=0, closefd=False) as stream:
        for _ in range(3):
            stream.write(b"1")
    assert reading.recv(1) == b"111"
    writing.close()
    assert reading.recv(1) == b""
    reading.close()


def test_a_server_in_a_process_of_others_leaves_their_loops_alone():
    """Theirs may be many, which come and go; a fresh process, for others may have been changed."""
    code = """
        import socket
        from grpc._cython import cygrpc
        from pagewire.kit.server import ServerConfig, ServiceServer, run

        ServiceServer(ServerConfig(), "x", [])
        assert cygrpc.socket is socket

        async def main():
            assert cygrpc.socket is not socket

        assert run(main) == 0
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


GATHERING = """
    import asyncio, os, threading

    import grpc

    from pagewire.kit.completion_wakeups import let_completions_gather

    def policies():
        return {t.name: os.sched_getscheduler(t.native_id) for t in threading.enumerate()}

    async def main():
        let_completions_gather()  # there is no such thread yet
        async with grpc.aio.insecure_channel("127.0.0.1:1"):
            let_completions_gather()
            found = policies()
            others = {found.pop("MainThread")}
            assert set(found.values()) == {os.SCHED_BATCH}, found
            assert others == {os.SCHED_OTHER}

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs its scheduling policies")
def test_the_thread_that_tells_of_completions_pushes_nobody_off_a_core():
    command = [sys.executable, "-c", textwrap.dedent(GATHERING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs its scheduling policies")
def test_a_thread_that_may_not_be_changed_stays_as_it_is(monkeypatch):
    asked = []

    def refuse(thread_id, policy, _param):
        asked.append((thread_id, policy))
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="Thread-1 (_poll_wrapper)")
    thread.start()
    try:
        let_completions_gather()
    finally:
        ended.set()
        thread.join()
    assert (thread.native_id, os.SCHED_BATCH) in asked
