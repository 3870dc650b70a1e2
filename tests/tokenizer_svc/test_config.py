from __future__ import annotations

import pytest

from pagewire.kit.config import ConfigError, load_config
from tokenizer_svc.config import TokenizerServiceConfig


def load(*argv: str, **env: str) -> TokenizerServiceConfig:
    return load_config(TokenizerServiceConfig, prog="tokenizer_svc", argv=argv, env=env)


def test_defaults_serve_the_embedded_model_on_loopback() -> None:
    config = load()
    assert config.model == "smollm2"
    assert config.server.listen == "127.0.0.1:50051"
    assert config.server.admin_listen == "127.0.0.1:50061"
    assert config.server.metrics_port == 9101


def test_flags_go_before_the_environment() -> None:
    config = load("--max-prompt-bytes=5", PAGEWIRE_MAX_PROMPT_BYTES="6", PAGEWIRE_MODEL="m")
    assert (config.max_prompt_bytes, config.model) == (5, "m")


def test_the_cache_directory_has_its_variable() -> None:
    assert load(PAGEWIRE_CACHE_DIR="/c").cache_dir == "/c"


def test_zero_threads_are_as_many_as_cpus_but_few() -> None:
    assert 1 <= load().threads <= 4
    assert load("--num-threads=7").threads == 7


@pytest.mark.parametrize("flag", ["--max-prompt-bytes=0", "--num-threads=-1", "--num-threads=257"])
def test_values_out_of_range_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError):
        load(flag)
