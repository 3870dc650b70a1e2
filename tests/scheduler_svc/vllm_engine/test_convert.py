import json
import math

from pagewire.sampling_params import SamplingParams
from pagewire.v1 import common_pb2
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.direct_client import DirectClient
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_info import EngineInfo
from scheduler_svc.executor import KvCachePlan
from scheduler_svc.kv_events import BlocksStored, KvEventBatch
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason
from scheduler_svc.vllm_engine import convert
from scheduler_svc.vllm_engine.choice import Choice
from tests.scheduler_svc.fakes import FakeExecutor, make_config, make_facts

END = FinishedRequest("r", FinishReason.LENGTH, 3, 3, 0)


def rows(*values, top=0):
    """Logprobs of tokens; the candidates' ids count up."""
    num_tokens = len(values)
    return LogprobRows(
        list(values),
        [1] * num_tokens,
        [top] * num_tokens,
        list(range(top * num_tokens)),
        [-0.5] * (top * num_tokens),
    )


def make_choice():
    core = EngineCore(make_config(), FakeExecutor())
    client = DirectClient(core)
    request = EngineCoreRequest("r", [7, 8, 9], SamplingParams(), 0.0)
    return client, Choice(0, client, request, None)


def put(client, token_ids, logprobs=None, prompt_logprobs=None, end=None):
    client.put_outputs(
        EngineCoreOutputs(
            1,
            ["r"],
            [token_ids],
            {0: logprobs} if logprobs else {},
            {0: prompt_logprobs} if prompt_logprobs else {},
            finished=[end] if end else [],
        ),
        StepTimings(),
    )


def test_logprobs_of_a_chunk_are_those_of_its_tokens():
    client, choice = make_choice()
    put(client, [1, 2], rows(-1.0, -math.inf, top=2), rows(-2.0, -3.0, top=1))
    chunk = convert.chunk(choice, choice.take()).chunk
    output, prompt = chunk.output_logprobs, chunk.input_logprobs
    assert list(output.token_logprobs) == [-1.0, convert.MIN_LOGPROB]
    assert list(output.token_ids) == [1, 2]
    assert [list(top.token_ids) for top in output.top_logprobs] == [[0, 1], [2, 3]]
    assert not prompt.token_logprobs[0].HasField("value")
    assert [item.value for item in prompt.token_logprobs[1:]] == [-2.0, -3.0]
    assert list(prompt.token_ids) == [7, 8, 9]
    assert [list(top.token_ids) for top in prompt.top_logprobs] == [[], [0], [1]]


def test_the_one_message_without_streaming_has_all_logprobs():
    client, choice = make_choice()
    put(client, [1], rows(-1.0), rows(-2.0, -3.0))
    choice.keep_logprobs(choice.take())
    put(client, [2, 3], rows(-1.5, -1.75), end=END)
    choice.keep_logprobs(choice.take())
    complete = convert.complete(choice, ()).complete
    assert list(complete.output_logprobs.token_logprobs) == [-1.0, -1.5, -1.75]
    assert list(complete.output_logprobs.token_ids) == [1, 2, 3]
    assert not complete.output_logprobs.top_logprobs
    assert len(complete.input_logprobs.token_logprobs) == 3


def test_the_models_own_sampling_defaults_are_told():
    defaults = common_pb2.SamplingParams(temperature=0.6, top_k=20, seed=1)
    model = common_pb2.ModelInfo(
        architecture="A", vocab_size=1000, default_sampling_params=defaults
    )
    info = EngineInfo(make_facts(model_info=model), KvCachePlan(10, 4, 64), "f")
    message = convert.model_info(make_config(), info)
    assert json.loads(message.default_sampling_params_json) == {"temperature": 0.6, "top_k": 20}
    assert (message.max_context_length, list(message.architectures)) == (64, ["A"])


def test_a_model_without_sampling_defaults_has_none():
    info = EngineInfo(make_facts(), KvCachePlan(10, 4, 64), "f")
    assert convert.model_info(make_config(), info).default_sampling_params_json == ""


def test_kv_events_keep_their_order_and_each_block_its_tokens():
    first, second, gone = b"\xff" * 32, b"\x01" * 32, b"\x02" * 32
    batch = KvEventBatch(3, True, [gone], [BlocksStored(gone, [first, second], [1, 2, 3, 4])])
    message = convert.kv_event_batch(batch, 2, 1.5)
    assert (message.sequence_number, message.timestamp) == (3, 1.5)
    kinds = [event.WhichOneof("data") for event in message.events]
    assert kinds == ["cleared", "removed", "stored"]
    stored = message.events[2].stored
    assert [list(block.token_ids) for block in stored.blocks] == [[1, 2], [3, 4]]
    assert stored.blocks[0].block_hash == -1
    assert stored.parent_block_hash == message.events[1].removed.block_hashes[0]
