"""The embedded model in float32, in place of the simulated one: a fault changes no token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagewire.sampling_params import SamplingParams
from tests.chaos.answers import Answer, ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import Request, mixed_requests
from tests.chaos.stack import Layout, chaos_stack
from tests.e2e.closeness import smollm2_gap
from tests.e2e.completions import TokenRequest
from tests.parity import ParityReport

ENGINE = (
    "--model=smollm2",
    "--device=cpu",
    "--dtype=float32",
    "--num-threads=1",
    "--max-model-len=512",
    "--kv-cache-memory-bytes=100000000",
)
NUM_TOKENS = 16
NOT_A_TIE = 1.0


@pytest.mark.timeout(900)
async def test_a_killed_worker_changes_no_token() -> None:
    await survive(8, [Fault(Kind.KILL, "worker-0")])


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_faults_change_no_token() -> None:
    processes = ("worker-0", "scheduler-1", "tokenizer-0", "worker-1", "scheduler-0")
    await survive(32, [Fault(kind, name) for kind in (Kind.KILL, Kind.STOP) for name in processes])


async def survive(num_streams: int, faults: Sequence[Fault]) -> None:
    requests = mixed_requests(17, num_streams, NUM_TOKENS)
    layout = Layout(engine=ENGINE)
    async with chaos_stack(layout) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            for fault in faults:
                await load.wait_under_way()
                struck = fault.strike(stack)
                await load.wait_turnover()
                await struck.heal(stack)
                print(f"{fault}: {load.summary()}", flush=True)
            await load.finish()
            report = ParityReport()
            for client, right in zip(load.clients, expected, strict=True):
                for answer in client.answers:
                    compare(report, client.request, answer, right)
            report.check()
            print(f"{load.summary()}, {len(report.divergences)} near-ties")
        await wait_idle(stack)


def compare(report: ParityReport, request: Request, answer: Answer, right: Answer) -> None:
    """Add the outputs of an answer; they have the same indexes and ends of some kind."""
    assert answer.outputs.keys() == right.outputs.keys()
    for index, output in right.outputs.items():
        report.compare(
            f"seed {request.sampling.seed}, index {index}",
            answer.outputs[index].token_ids,
            output.token_ids,
            lambda at, output=output: gap(request, output.token_ids[:at]),
        )
        if answer.outputs[index].token_ids == output.token_ids:
            ours, theirs = answer.outputs[index], output
            assert (ours.text, ours.finish) == (theirs.text, theirs.finish)


def gap(request: Request, output: Sequence[int]) -> float:
    """How close a choice was, for requests of which the reference knows all that they ask for."""
    sampling = request.sampling
    is_plain = not sampling.presence_penalty and not request.response.HasField("structured_outputs")
    if not is_plain or not request.HasField("token_ids") or sampling.n > 1:
        return NOT_A_TIE
    params = SamplingParams(
        temperature=sampling.temperature, top_p=sampling.top_p or 1.0, seed=sampling.seed
    )
    return smollm2_gap(TokenRequest(tuple(request.token_ids.ids), params), output)
