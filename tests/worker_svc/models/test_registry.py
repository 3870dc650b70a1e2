from __future__ import annotations

import pytest

from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.registry import (
    MODELS,
    REFUSED,
    Implementation,
    model_class,
    select_implementation,
)


def test_the_first_architecture_with_a_row_is_taken() -> None:
    chosen = select_implementation(["Other", "Qwen3ForCausalLM"])
    assert chosen == Implementation("Qwen3ForCausalLM", is_own=True)
    assert model_class("Qwen3ForCausalLM").__name__ == "LlamaForCausalLM"


def test_auto_prefers_our_own_module_and_takes_the_backend_for_the_others() -> None:
    assert select_implementation(["LlamaForCausalLM"]).is_own
    assert not select_implementation(["GPT2LMHeadModel"]).is_own


def test_the_backend_can_be_forced_for_every_row() -> None:
    for architecture in MODELS:
        chosen = select_implementation([architecture], "transformers")
        assert chosen == Implementation(architecture, is_own=False)


def test_our_own_module_cannot_be_forced_where_there_is_none() -> None:
    assert select_implementation(["MistralForCausalLM"], "pagewire").is_own
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*--model-impl auto"):
        select_implementation(["GPT2LMHeadModel"], "pagewire")
    with pytest.raises(LookupError, match="GPT2LMHeadModel"):
        model_class("GPT2LMHeadModel")


def test_a_decoder_without_a_row_goes_to_the_backend_as_untested() -> None:
    chosen = select_implementation(["CohereForCausalLM"])
    assert chosen == Implementation("CohereForCausalLM", is_own=False, is_tested=False)
    with pytest.raises(UnsupportedModelError, match=r"CohereForCausalLM.*LlamaForCausalLM"):
        select_implementation(["CohereForCausalLM"], "pagewire")


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_read(architecture: str) -> None:
    for model_impl in ("auto", "transformers"):
        with pytest.raises(UnsupportedModelError, match=architecture):
            select_implementation([architecture], model_impl)  # type: ignore[arg-type]


@pytest.mark.parametrize("architectures", [[], ["T5ForConditionalGeneration"], ["BertModel"]])
def test_what_is_no_decoder_is_refused_with_those_that_are_served(
    architectures: list[str],
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*LlamaForCausalLM"):
        select_implementation(architectures)


def test_no_architecture_is_both_served_and_refused() -> None:
    assert not MODELS.keys() & REFUSED.keys()
