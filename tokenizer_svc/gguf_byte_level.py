"""Byte-level BPE tokenizers (GPT-2's kind) from GGUF fields.

The file names its splitting rule, `tokenizer.ggml.pre`, but does not spell it; the rules that we
know are here. A wrong rule gives wrong tokens silently, so an unknown name is an error. Rules
follow each model's own tokenizer: numbers of SmolLM are split into digits, Llama 3 takes up to
three digits together and prefers whole tokens over merges, Qwen 2 normalizes to NFC.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagewire.gguf import GgufError
from pagewire.kit.rust_panics import RustPanicsRaised
from tokenizer_svc.gguf_fields import GgufVocabulary

_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA_3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN_2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """How text is prepared for the merges."""

    regex: str | None = None
    """Pieces of text; None: GPT-2's own."""
    single_digits: bool = False
    """Whether every digit is a piece of its own, before the regex."""
    nfc: bool = False
    ignore_merges: bool = False
    """Whether a piece that is a token is taken whole, even where merges would not reach it."""
    add_bos: bool = False
    """Whether texts start with BOS where the file does not say."""


_SMOLLM = SplittingRule(single_digits=True)
_LLAMA = SplittingRule(regex=_LLAMA_3, ignore_merges=True, add_bos=True)
_QWEN = SplittingRule(regex=_QWEN_2, nfc=True)

RULES = {
    "gpt-2": SplittingRule(),
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
}


def byte_level_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer without its special tokens.

    Raises:
        GgufError: The splitting rule is unknown, or the merges don't fit the tokens.
    """
    rule = splitting_rule(vocabulary)
    if vocabulary.merges is None:
        raise GgufError("a byte-level tokenizer needs tokenizer.ggml.merges")
    tokens = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    try:
        with RustPanicsRaised():
            model = models.BPE(
                vocab=tokens, merges=list(vocabulary.merges), ignore_merges=rule.ignore_merges
            )
    except Exception as error:  # the library raises bare Exception for merges of unknown tokens
        raise GgufError(f"tokenizer.ggml.merges does not fit the tokens: {error}") from error
    tokenizer = Tokenizer(model)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def adds_bos(vocabulary: GgufVocabulary) -> bool:
    if vocabulary.add_bos is not None:
        return vocabulary.add_bos
    return splitting_rule(vocabulary).add_bos


def splitting_rule(vocabulary: GgufVocabulary) -> SplittingRule:
    """The rule that the file names.

    Raises:
        GgufError: We don't know it.
    """
    rule = RULES.get(vocabulary.pre or "")
    if rule is None:
        raise GgufError(
            f"tokenizer.ggml.pre {vocabulary.pre!r} is not a splitting rule that we know "
            f"({', '.join(RULES)}); use the model's Hugging Face tokenizer with --tokenizer"
        )
    return rule


def _pre_tokenizer(rule: SplittingRule) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.regex is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.regex is None))
    return pre_tokenizers.Sequence(steps)
