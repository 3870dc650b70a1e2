"""The table of `pagewire profile`."""

from __future__ import annotations

from pagewire.cli.operator_table import NUM_OPERATORS, operator_table, worker_lines
from pagewire.v1 import worker_pb2

MS = 1_000_000


def result(
    *operators: tuple[str, int, int, int], path: str = "/t"
) -> worker_pb2.StopProfileResponse:
    return worker_pb2.StopProfileResponse(
        path=path,
        num_steps=5,
        duration_ns=1500 * MS,
        operators=[
            worker_pb2.OperatorTime(name=name, calls=calls, self_cpu_ns=cpu, self_device_ns=device)
            for name, calls, cpu, device in operators
        ],
        total_self_cpu_ns=sum(cpu for _, _, cpu, _ in operators),
        total_self_device_ns=sum(device for *_, device in operators),
    )


def test_each_worker_has_its_own_trace() -> None:
    lines = worker_lines(["a:1", "b:2"], [result(path="/x"), result(path="/y")])
    assert lines == ["a:1: 5 steps in 1.50 s: /x", "b:2: 5 steps in 1.50 s: /y"]


def test_workers_are_added_up_and_the_costliest_comes_first() -> None:
    lines = operator_table(
        [result(("mm", 2, 10 * MS, 0), ("add", 1, 20 * MS, 0)), result(("mm", 3, 50 * MS, 0))]
    )
    assert [line.split() for line in lines] == [
        ["operator", "calls", "CPU", "ms", "share"],
        ["mm", "5", "60.0", "75.0", "%"],
        ["add", "1", "20.0", "25.0", "%"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_the_device_decides_where_there_is_one() -> None:
    lines = operator_table([result(("launch", 9, 50 * MS, 0), ("kernel", 9, 0, 8 * MS))])
    assert [line.split()[0] for line in lines] == ["operator", "kernel", "launch"]
    assert "device ms" in lines[0] and lines[1].endswith("100.0 %")


def test_the_table_is_short() -> None:
    lines = operator_table([result(*((f"op{i}" + "x" * 90, 1, MS, 0) for i in range(30)))])
    assert len(lines) == 1 + NUM_OPERATORS
    assert max(map(len, lines)) < 100


def test_a_profile_without_steps_says_what_to_do() -> None:
    (line,) = operator_table([worker_pb2.StopProfileResponse(path="/t")])
    assert "send requests" in line
