"""SentencePiece-like tokenizers (Llama 2, Mistral, Phi 3, Gemma) from GGUF fields.

The file gives each token a score in place of a list of merges: a pair merges if the whole is a
token, best score first. Merges are recovered from that. Characters that have no token fall back to
byte tokens `<0x00>` to `<0xFF>`. Spaces are spelled U+2581.
"""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagewire.gguf import GgufError
from pagewire.kit.rust_panics import RustPanicsRaised
from tokenizer_svc.gguf_fields import GgufVocabulary, TokenType

SPACE = "\u2581"
_GEMMA = ("gemma", "gemma2", "gemma3")
_MERGED_TYPES = (TokenType.NORMAL, TokenType.USER_DEFINED)


def sentencepiece_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer without its special tokens.

    Raises:
        GgufError: There are neither merges nor scores, or they don't fit the tokens.
    """
    gemma = vocabulary.architecture in _GEMMA
    tokenizer = Tokenizer(_model(vocabulary, gemma))
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    prefix = vocabulary.add_space_prefix is not False and not gemma
    if gemma:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    elif vocabulary.architecture == "phi3" and prefix:
        # Phi 3 puts its space before every text, also before one that starts with a space.
        steps = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        scheme = "first" if prefix else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            SPACE, prepend_scheme=scheme, split=False
        )
    if prefix:
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def respell_spaces(vocabulary: GgufVocabulary) -> GgufVocabulary:
    """Spell Gemma's runs of spaces, which its files have as they are, like all other tokens."""
    if vocabulary.architecture not in _GEMMA:
        return vocabulary
    tokens = tuple(
        SPACE * len(token) if token and not token.strip(" ") else token
        for token in vocabulary.tokens
    )
    if len(set(tokens)) != len(tokens):
        raise GgufError("a run of spaces is in the vocabulary in two spellings")
    return replace(vocabulary, tokens=tokens)


def _model(vocabulary: GgufVocabulary, gemma: bool) -> models.BPE:
    tokens = list(vocabulary.tokens)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    merges = list(vocabulary.merges) if vocabulary.merges is not None else None
    if merges is None:
        # Gemma's scores don't follow its merge order; the order of its tokens does.
        scores = [-float(i) for i in range(len(tokens))] if gemma else vocabulary.scores
        if scores is None:
            raise GgufError("a SentencePiece tokenizer needs tokenizer.ggml.scores or merges")
        merges = merges_from_scores(tokens, list(scores), list(vocabulary.token_types))
    try:
        with RustPanicsRaised():
            return models.BPE(
                vocab=ids,
                merges=merges,
                unk_token=vocabulary.token(vocabulary.unk_token_id),
                fuse_unk=True,
                byte_fallback=True,
            )
    except Exception as error:  # the library raises bare Exception for merges of unknown tokens
        raise GgufError(f"the merges do not fit the tokens: {error}") from error


def merges_from_scores(
    tokens: list[str], scores: list[float], token_types: list[int]
) -> list[tuple[str, str]]:
    """Every way to make a token of two tokens, best score of the whole first.

    Of several ways to the same token the one with the longer left part comes first.
    """
    mergeable = {t for t, kind in zip(tokens, token_types, strict=True) if kind in _MERGED_TYPES}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        if token not in mergeable:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((-score, -len(left), -len(right), left, right))
    # Stable beyond the lengths: equal scores keep the order of ids.
    ranked.sort(key=lambda entry: entry[:3])
    return [(left, right) for *_, left, right in ranked]
