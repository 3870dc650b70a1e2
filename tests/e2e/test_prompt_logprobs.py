"""Logprobs of a prompt through scheduler and worker, to a client of `Generate`."""

from __future__ import annotations

from pagewire.kit.channels import open_channel
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.stack import start_stack

PROMPT_TOKEN_IDS = list(range(100, 140))
TIMEOUT_S = 60.0


async def test_they_come_once_with_the_first_token_of_a_prompt_in_chunks() -> None:
    flags = ("--device=sim", "--max-num-batched-tokens=16", "--max-num-seqs=4")
    request = scheduler_pb2.SchedulerServiceGenerateRequest(
        prompt_token_ids=PROMPT_TOKEN_IDS,
        sampling_params=common_pb2.SamplingParams(
            temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=2
        ),
    )
    with start_stack(*flags) as stack:
        async with open_channel(stack.scheduler_target) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            messages = [message async for message in stub.Generate(request, timeout=TIMEOUT_S)]
    first, *later = messages
    assert list(first.prompt_logprobs.top_counts) == [2] * (len(PROMPT_TOKEN_IDS) - 1)
    # Simulated: the token itself is the likeliest.
    assert list(first.prompt_logprobs.top_token_ids[::2]) == PROMPT_TOKEN_IDS[1:]
    assert not any(message.HasField("prompt_logprobs") for message in later)
    for message in messages:
        assert len(message.logprobs.logprobs) == len(message.token_ids)
        assert list(message.logprobs.top_token_ids) == list(message.token_ids)
    assert sum(len(message.token_ids) for message in messages) == 6
