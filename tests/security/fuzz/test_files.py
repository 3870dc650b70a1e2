"""Damaged files of models and of configuration: a clear refusal, or what they say; nothing else.

`FUZZ_ROUNDS` makes it longer and `FUZZ_SEED` another one: `make fuzz`.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig
from pagewire.engine_config import EngineConfig
from pagewire.gguf import read_gguf
from pagewire.kit.config_fields import settings_of
from pagewire.kit.config_file import read_config_file
from tests.pagewire import gguf_builder as gguf
from tests.security.fuzz.messages import damaged
from tests.security.fuzz.mutations import damaged_json, damaged_text, hostile_json
from tests.tokenizer_svc.factories import byte_level_gguf, sentencepiece_gguf
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.hf_tokenizer import load_tokenizer
from worker_svc.models.config import llama_config_from_hf
from worker_svc.models.decoder_config import decoder_config_from_hf
from worker_svc.models.gguf_config import hf_config_from_gguf
from worker_svc.models.hf_files import read_model_config
from worker_svc.weights.safetensors_source import SafetensorsSource

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "20261130"))
NUM_TRIES = 150 * ROUNDS
pytestmark = pytest.mark.timeout(300 * ROUNDS)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention"],
    "eos_token_id": [1, 2],
    "bos_token_id": 0,
    "tie_word_embeddings": True,
}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}
GGUF_SIZES = {
    "embedding_length": 4,
    "block_count": 2,
    "feed_forward_length": 8,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "context_length": 64,
    "rope.dimension_count": 2,
}
YAML = """\
http-port: 8000
schedulers: [a:1, b:2]
api_key: [x=secret]
timeouts:
  request-timeout: 3.5
cors: {allowed-origins: ["*"], allow-credentials: true}
"""
YAML_PIECES = (
    "!!python/object/apply:os.system [id]", "&a", "*a", "<<: *a", "- ", ": ", "\t", "{", "[", "|",
    "? ", "!!binary ", "0o7", ".inf", "2026-11-30", "''", '"', "\x00", "---\n", "%TAG ! x\n",
)  # fmt: skip


def generator_of(name: str) -> random.Random:
    return random.Random(SEED ^ zlib.crc32(name.encode()))


def refused(parse: Callable[[], Any], allowed: type[Exception]) -> str | None:
    """Parse; return why it was refused, None: it was not."""
    try:
        parse()
    except allowed as error:
        return str(error)
    return None


def check_all(
    inputs: Iterator[bytes], parse: Callable[[bytes], Any], allowed: type[Exception]
) -> None:
    """Try all of them; some must be refused, and some not, or the fuzzing is none."""
    results = [refused(lambda each=each: parse(each), allowed) for each in inputs]  # type: ignore[misc]
    reasons = [each for each in results if each is not None]
    assert 0 < len(reasons) < len(results)
    assert all(reasons)
    assert not any("Traceback" in reason or "object at 0x" in reason for reason in reasons)


def broken(content: bytes, name: str) -> Iterator[bytes]:
    """The bytes themselves, cut, and damaged."""
    generator = generator_of(name)
    yield content
    for length in range(0, len(content), max(1, len(content) // 30)):
        yield content[:length]
    for _ in range(NUM_TRIES):
        yield damaged(content, generator)


@pytest.mark.parametrize("make", [byte_level_gguf, sentencepiece_gguf])
def test_vocabularies_of_gguf(make: Callable[[], gguf.GgufBuilder], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    content = make().write(path).read_bytes()

    def parse(damaged_file: bytes) -> None:
        path.write_bytes(damaged_file)
        read_gguf(path, keys=["tokenizer.ggml.tokens"])
        convert_gguf(path)

    check_all(broken(content, make.__name__), parse, ValueError)


def model_gguf() -> gguf.GgufBuilder:
    """A model of one tensor."""
    builder = gguf.GgufBuilder().text("general.architecture", "llama")
    for key, value in GGUF_SIZES.items():
        builder.key(f"llama.{key}", gguf.U32, gguf.number(gguf.U32, value))
    epsilon = gguf.number(gguf.F32, 1e-5)
    builder.key("llama.attention.layer_norm_rms_epsilon", gguf.F32, epsilon)
    builder.text("llama.rope.scaling.type", "linear")
    builder.key("llama.rope.scaling.factor", gguf.F32, gguf.number(gguf.F32, 2.0))
    builder.tensor("token_embd.weight", (4, 8), 0, 0)
    builder.data = bytes(4 * 8 * 4)
    return builder


def test_models_of_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    content = model_gguf().write(path).read_bytes()

    def parse(damaged_file: bytes) -> None:
        path.write_bytes(damaged_file)
        file = read_gguf(path)
        llama_config_from_hf(hf_config_from_gguf(file), "LlamaForCausalLM")
        for info in file.tensors.values():
            bytes(file.tensor_bytes(info))

    check_all(broken(content, "models"), parse, ValueError)


def test_safetensors(tmp_path: Path) -> None:
    path, generator = tmp_path / "model.safetensors", generator_of("safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def parse(header: bytes) -> None:
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
        source = SafetensorsSource(tmp_path)
        for name in source.names():
            source.tensor(name)

    def inputs() -> Iterator[bytes]:
        yield json.dumps(HEADER).encode()
        yield from hostile_json()
        for _ in range(NUM_TRIES):
            yield damaged_json(HEADER, generator)

    check_all(inputs(), parse, ValueError)


def test_the_length_of_a_safetensors_header(tmp_path: Path) -> None:
    header = json.dumps(HEADER).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(32)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "model.safetensors"

    def parse(content: bytes) -> None:
        path.write_bytes(content)
        SafetensorsSource(tmp_path)

    check_all(broken(whole, "length"), parse, ValueError)


@pytest.mark.parametrize("read", [llama_config_from_hf, decoder_config_from_hf])
def test_config_json(read: Callable[[Any, str], Any], tmp_path: Path) -> None:
    path, generator = tmp_path / "config.json", generator_of(read.__name__)

    def parse(content: bytes) -> None:
        path.write_bytes(content)
        read(read_model_config(tmp_path), "LlamaForCausalLM")

    def inputs() -> Iterator[bytes]:
        yield json.dumps(CONFIG).encode()
        yield from hostile_json()
        for _ in range(4 * NUM_TRIES):
            yield damaged_json(CONFIG, generator)

    check_all(inputs(), parse, ValueError)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_tokenizer_files(name: str, tmp_path: Path) -> None:
    generator = generator_of(name)
    files = convert_gguf(byte_level_gguf().write(tmp_path / "model.gguf"))
    whole = json.loads(files[name])

    def inputs() -> Iterator[bytes]:
        yield files[name]
        yield from hostile_json()
        for _ in range(NUM_TRIES):
            yield damaged_json(whole, generator)

    check_all(inputs(), lambda each: load_tokenizer({**files, name: each}, "f"), ValueError)


@pytest.mark.parametrize("kind", [GatewayConfig, EngineConfig])
def test_configuration_files(kind: type[Any], tmp_path: Path) -> None:
    path, generator = tmp_path / "config.yaml", generator_of(kind.__name__)
    text = YAML if kind is GatewayConfig else "model: {model: x}\nmax-model-len: 8\n"
    settings = settings_of(kind)
    kinds = {setting.dest: setting.kind for setting in settings}

    def parse(content: bytes) -> None:
        path.write_bytes(content)
        for dest, (_, value) in read_config_file(path, settings).items():
            kinds[dest].from_yaml(value)

    def inputs() -> Iterator[bytes]:
        yield text.encode()
        yield from hostile_json()
        yield b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (i, i) for i in range(40))
        for _ in range(NUM_TRIES):
            yield damaged_text(text, YAML_PIECES, generator).encode("utf-8", "surrogatepass")

    check_all(inputs(), parse, ValueError)
