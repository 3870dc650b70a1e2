"""Tests of how keyword arguments become the flags of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.cli.stack_config import ServeConfig, TokenizerOptions
from pagewire.engine_config import EngineConfig
from pagewire.kit.config import load_config
from pagewire.kit.config_fields import settings_of
from pagewire.offline.local_stack import to_flags
from pagewire.offline.options import EngineOptions


def test_there_is_an_option_for_every_setting_of_engine_and_tokenizer():
    settings = [*settings_of(EngineConfig), *settings_of(TokenizerOptions)]
    assert set(EngineOptions.__annotations__) == {s.name for s in settings} - {"model"}


def test_options_reach_the_configuration():
    flags = to_flags(
        {
            "model": "some/model",
            "max_model_len": 512,
            "enable_prefix_caching": False,
            "async_scheduling": True,
            "served_model_name": "a",
            "chat_template": Path("t.jinja"),
            "revision": None,
            "gpu_memory_utilization": 0.5,
        }
    )
    config = load_config(ServeConfig, prog="x", argv=flags, env={})
    assert config.engine.model.served_model_name == ("a",)
    assert config.engine.model.max_model_len == 512
    assert not config.engine.cache.enable_prefix_caching
    assert config.engine.cache.gpu_memory_utilization == 0.5
    assert config.tokenizer.chat_template == "t.jinja"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_model_length": 5}, TypeError, "no option 'max_model_length'"),
        ({"max_model_len": 1}, ValueError, "max-model-len"),
        ({"max_num_seqs": "many"}, ValueError, "max-num-seqs"),
        ({"enforce_eager": "yes"}, ValueError, "must be True or False"),
        ({"max_num_seqs": 4096, "max_num_batched_tokens": 16}, ValueError, "max_num_seqs"),
    ],
)
def test_wrong_settings_are_named_before_anything_starts(settings, error, message):
    with pytest.raises(error, match=message):
        to_flags(settings)
