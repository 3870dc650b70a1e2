"""`LLM` with a stack of its own: what it answers, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pagewire import LLM, SamplingParams
from pagewire.errors import PromptsFailedError
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.stack import Stack
from worker_svc.sim.oracle import expected_tokens

ROOT = Path(__file__).resolve().parents[2]
MARKER = "PAGEWIRE_TEST_LLM"
END_TIMEOUT_S = 60.0

START = """
import sys, pagewire
llm = pagewire.LLM(device="sim", max_model_len=512, sim_step_time_us=2000)
print(llm.generate("a", pagewire.SamplingParams(max_tokens=2), use_tqdm=False)[0].text, flush=True)
"""
LONG = """
llm.generate(["a"] * 100_000, pagewire.SamplingParams(ignore_eos=True), use_tqdm=False)
"""


class Program:
    """A Python program with a stack; knows all processes and files that come from it."""

    def __init__(self, code: str) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pw-"))  # short: sockets live in it
        self._marker = uuid.uuid4().hex
        kept = {name: v for name, v in os.environ.items() if not name.startswith("PAGEWIRE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**kept, "XDG_RUNTIME_DIR": str(self.base), MARKER: self._marker},
        )

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def end(self) -> tuple[int, str]:
        """Wait for the program's end; return its exit code and what it said as errors."""
        _, stderr = self.process.communicate(timeout=END_TIMEOUT_S)
        return self.process.returncode, stderr

    def left(self) -> list[object]:
        """Wait for the processes to end; return what is left of them and of their files."""
        _, alive = psutil.wait_procs(self.processes(), timeout=END_TIMEOUT_S)
        return [*alive, *self.base.rglob("*")]

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        self.process.communicate(timeout=END_TIMEOUT_S)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return not is_zombie and process.environ().get(MARKER) == self._marker
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


@pytest.fixture
def run() -> Iterator[type[Program]]:
    programs: list[Program] = []

    class Started(Program):
        def __init__(self, code: str) -> None:
            super().__init__(code)
            programs.append(self)

    yield Started
    for program in programs:
        program.close()


def test_a_program_that_ends_leaves_nothing(run: type[Program]) -> None:
    program = run(START)
    code, stderr = program.end()
    assert code == 0, stderr
    assert program.left() == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, -signal.SIGINT, marks=pytest.mark.slow),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_program_that_is_interrupted_or_killed_leaves_nothing(
    run: type[Program], number: signal.Signals, code: int
) -> None:
    program = run(START + LONG)
    assert program.process.stdout is not None
    assert program.process.stdout.readline(), program.end()
    processes = program.processes()
    assert len(processes) == 6  # the program, its supervisor, four services
    program.process.send_signal(number)
    returned, stderr = program.end()
    assert returned == code, stderr
    assert ("KeyboardInterrupt" in stderr) == (number is signal.SIGINT)
    psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
    assert program.left() == []


def test_many_prompts_get_what_each_gets_alone(sim_stack: Stack) -> None:
    prompts = [[1000 + i, *range(i % 40)] for i in range(300)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=1 + i % 30, ignore_eos=True)
        for i in range(300)
    ]
    with LLM(address=sim_stack.grpc_target, max_in_flight=150) as llm:
        same = [llm.generate(prompts, params[5], use_tqdm=False) for _ in range(2)]
        outputs = llm.generate(prompts[:60], params[:60], use_tqdm=False)
    for prompt, output in zip(prompts, same[0], strict=True):
        assert output.prompt_token_ids == tuple(prompt)
        tokens = expected_tokens(prompt, params[5], params[5].max_tokens or 0, SIM_VOCABULARY)
        assert list(output.outputs[0].token_ids) == tokens
    assert [o.outputs for o in same[0]] == [o.outputs for o in same[1]]
    for i, output in enumerate(outputs):
        tokens = expected_tokens(prompts[i], params[i], params[i].max_tokens or 0, SIM_VOCABULARY)
        assert list(output.outputs[0].token_ids) == tokens


def test_a_prompt_that_is_too_long_is_named_and_the_others_are_answered(sim_stack: Stack) -> None:
    prompts: list[str | list[int]] = ["a", [7] * 100_000, "b", [10**6], "c"]
    with LLM(address=sim_stack.grpc_target) as llm, pytest.raises(PromptsFailedError) as caught:
        llm.generate(prompts, SamplingParams(max_tokens=3), use_tqdm=False)
    assert caught.value.errors[1].reason == "CONTEXT_LENGTH_EXCEEDED"
    assert sorted(caught.value.errors) == [1, 3]
    assert [output is None for output in caught.value.outputs] == [False, True, False, True, False]


def test_the_embedded_model_answers_texts_and_conversations(smollm2_stack: Stack) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM(address=smollm2_stack.grpc_target) as llm:
        (continued,) = llm.generate("The capital of France is", params, use_tqdm=False)
        answers = llm.chat([question, question], params, use_tqdm=False)
        assert llm.client.chat(question, temperature=0, max_tokens=6).text == answers[0].text
        assert llm.client.count_tokens(question) == len(answers[0].prompt_token_ids or ())
    assert "Paris" in continued.text
    assert answers[0].outputs == answers[1].outputs
    output = continued.outputs[0]
    assert output.logprobs is not None and continued.prompt_logprobs is not None
    assert [row.token.token_id for row in output.logprobs] == list(output.token_ids)
    assert all(len(row.top) == 2 and row.token.rank == 1 for row in output.logprobs)
    assert "".join(row.token.decoded_token for row in output.logprobs) == output.text
    prompt_ids = continued.prompt_token_ids or ()
    assert [row.token.token_id for row in continued.prompt_logprobs] == list(prompt_ids[1:])


def test_named_tokens_have_the_logprobs_that_they_have_among_the_likeliest(
    smollm2_stack: Stack,
) -> None:
    likeliest = SamplingParams(temperature=0, max_tokens=3, logprobs=4)
    with LLM(address=smollm2_stack.grpc_target) as llm:
        (whole,) = llm.generate("The capital of France is", likeliest, use_tqdm=False)
        first = (whole.outputs[0].logprobs or ())[0]
        names = tuple(candidate.token_id for candidate in reversed(first.top))
        params = SamplingParams(temperature=0, max_tokens=3, logprob_token_ids=names)
        (named,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert named.outputs[0].token_ids == whole.outputs[0].token_ids
    rows = named.outputs[0].logprobs or ()
    assert [tuple(each.token_id for each in row.top) for row in rows] == [names] * 3
    expected = [candidate.logprob for candidate in reversed(first.top)]
    assert [each.logprob for each in rows[0].top] == pytest.approx(expected, abs=0.05)
