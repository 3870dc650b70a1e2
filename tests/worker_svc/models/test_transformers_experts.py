from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from worker_svc.models.transformers_experts import experts_forward

SIZES = {"hidden_size": 32, "intermediate_size": 24, "num_local_experts": 4}


def make_experts(family: str) -> nn.Module:
    """One layer's experts, run by transformers' own code when called."""
    import transformers
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config: Any
    experts: nn.Module
    if family == "mixtral":
        config = transformers.MixtralConfig(**SIZES)
        config._experts_implementation = "eager"
        experts = MixtralExperts(config)
    else:
        config = transformers.GptOssConfig(**SIZES)
        config._experts_implementation = "eager"
        experts = GptOssExperts(config)
    for parameter in experts.parameters():
        parameter.data.normal_(0.0, 0.5)
    return experts.requires_grad_(False)


def make_inputs(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(num_tokens, 32)
    shares, chosen = torch.randn(num_tokens, 4).softmax(-1).topk(2)
    return hidden, chosen, shares


# GPT-OSS's experts have biases: they run transformers' way.
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("num_tokens", [1, 2, 40])
def test_experts_give_what_transformers_gives(family: str, num_tokens: int) -> None:
    torch.manual_seed(0)
    experts, inputs = make_experts(family), make_inputs(num_tokens)
    torch.testing.assert_close(experts_forward(experts, *inputs), experts(*inputs))


def test_a_tokens_experts_give_the_same_bits_whoever_else_chose_them() -> None:
    torch.manual_seed(0)
    experts, (hidden, chosen, shares) = make_experts("mixtral"), make_inputs(40)
    together = experts_forward(experts, hidden, chosen, shares)
    for token in range(40):
        part = slice(token, token + 1)
        alone = experts_forward(experts, hidden[part], chosen[part], shares[part])
        assert torch.equal(alone[0], together[token])
