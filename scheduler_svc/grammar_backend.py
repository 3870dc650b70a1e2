"""Grammars by llguidance: compiles forms, and walks them token by token.

`GrammarBackend` belongs to one vocabulary and may be used from several threads; a grammar that it
gives belongs to one request. All of it blocks: `grammar_compiler` says on which thread it runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar_source import describe, grammar_source
from scheduler_svc.vocabulary import GreedyEncoder, Vocabulary

MAX_DRAFTED_FORM_BYTES = 8192
"""Text that must follow is found in one go, on the event loop; of a longer form it isn't looked
for, because it may be that long."""

# Less than the library's own bounds where a hostile form would take seconds: at most a few
# seconds to compile, and some 10 ms for a mask.
_INITIAL_LEXER_FUEL = 500_000
_STEP_LEXER_FUEL = 100_000
_STEP_MAX_ITEMS = 20_000


class GrammarBackend:
    """Compiled forms are kept, the least recently used goes first."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        cache_size: int,
    ) -> None:
        """Index the vocabulary.

        Takes about 2 s for 130,000 tokens, and the library holds the interpreter all the while: to
        be done once, early.

        Args:
            vocabulary: The tokens.
            vocab_size: Logits that the model gives; tokens beyond are never drawn.
            eos_token_ids: The model's ends of sequence, at least one.
            cache_size: Compiled forms that are kept; 0: none.
        """
        tokens = list(vocabulary.token_bytes[:vocab_size])
        tokens += [b""] * (vocab_size - len(tokens))
        self.vocab_size = vocab_size
        self.row_size = -(-vocab_size // 8)
        """Bytes of a mask."""
        self.eos_token_ids = frozenset(each for each in eos_token_ids if each < vocab_size)
        special = vocabulary.special_token_ids | self.eos_token_ids
        self.encoder = GreedyEncoder(tokens, special)
        self._tokenizer = _make_tokenizer(tokens, special, self.eos_token_ids, self.encoder)
        self._limits = LLParserLimits(
            initial_lexer_fuel=_INITIAL_LEXER_FUEL,
            step_lexer_fuel=_STEP_LEXER_FUEL,
            step_max_items=_STEP_MAX_ITEMS,
            verbose_errors=False,
        )
        self._cache_size = cache_size
        self._cache: OrderedDict[StructuredOutputs, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, outputs: StructuredOutputs) -> LlguidanceGrammar:
        """Return a grammar at its start.

        Raises:
            GrammarError: The form is wrong, not supported, or too complex.
        """
        matcher = self._cached(outputs)
        if matcher is None:
            matcher = self._compile(outputs)
            self._keep(outputs, matcher)
        drafts = outputs.num_bytes <= MAX_DRAFTED_FORM_BYTES
        return LlguidanceGrammar(self, outputs, matcher.deep_copy(), drafts)

    def _compile(self, outputs: StructuredOutputs) -> LLMatcher:
        source = grammar_source(outputs)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        grammar = LlguidanceGrammar(self, outputs, matcher, drafts=False)
        if matcher.is_error():
            raise describe(outputs, matcher.get_error())
        # The first mask is by far the dearest: it belongs to compiling, not to a step. Many a form
        # that is too complex fails only with the second one.
        allowed = int.from_bytes(grammar.masks(()), "little")
        first = (allowed & -allowed).bit_length() - 1
        if first not in self.eos_token_ids:
            probe = LlguidanceGrammar(self, outputs, matcher.deep_copy(), drafts=False)
            probe.accept(first)
            probe.masks(())
        return matcher

    def _cached(self, outputs: StructuredOutputs) -> LLMatcher | None:
        with self._lock:
            matcher = self._cache.get(outputs)
            if matcher is not None:
                self._cache.move_to_end(outputs)
            return matcher

    def _keep(self, outputs: StructuredOutputs, matcher: LLMatcher) -> None:
        with self._lock:
            self._cache[outputs] = matcher
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


class LlguidanceGrammar:
    """Implements `grammar.Grammar`."""

    def __init__(
        self, backend: GrammarBackend, outputs: StructuredOutputs, matcher: LLMatcher, drafts: bool
    ) -> None:
        self._backend = backend
        self._outputs = outputs
        self._matcher = matcher
        self._drafts = drafts
        self._has_ended = False
        """An EOS token was accepted."""

    @property
    def is_complete(self) -> bool:
        return self._has_ended or (self._matcher.is_stopped() and self._matcher.is_accepting())

    def accept(self, token_id: int) -> bool:
        if token_id in self._backend.eos_token_ids:
            self._has_ended = not self._has_ended and self._matcher.is_accepting()
            return self._has_ended
        return not self._has_ended and self._matcher.try_consume_tokens([token_id]) == 1

    def forced_tokens(self, max_tokens: int) -> list[int]:
        if not self._drafts or self.is_complete:
            return []
        return self._backend.encoder.encode(self._matcher.compute_ff_bytes(), max_tokens)

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        if self._has_ended or not token_ids:
            return 0
        if self._matcher.is_stopped():  # it would take no end any more
            return int(self.is_complete and token_ids[0] in self._backend.eos_token_ids)
        # An id that no token has would break the matcher.
        known = takewhile(lambda each: each < self._backend.vocab_size, token_ids)
        return self._matcher.validate_tokens(list(known))

    def masks(self, draft_token_ids: Sequence[int]) -> bytes:
        valid = draft_token_ids[: self.valid_prefix(draft_token_ids)]
        num_consumed = 0
        rows = [] if self._has_ended else [self._mask()]
        for token_id in valid:
            if token_id in self._backend.eos_token_ids:
                break
            num_consumed += self._matcher.try_consume_tokens([token_id])
            if self._matcher.is_stopped():
                break
            rows.append(self._mask())
        self._matcher.rollback(num_consumed)
        unused = b"\xff" * self._backend.row_size * (1 + len(draft_token_ids) - len(rows))
        return b"".join(rows) + unused

    def _mask(self) -> bytes:
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise describe(self._outputs, self._matcher.get_error())
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            raise describe(self._outputs, "NoExtension")
        # The library counts in words of 32 bits.
        return bits[: self._backend.row_size]


def _make_tokenizer(
    tokens: list[bytes],
    special_token_ids: frozenset[int],
    eos_token_ids: frozenset[int],
    encoder: GreedyEncoder,
) -> LLTokenizer:
    wrapper = TokenizerWrapper(_TokenizerFacts(tokens, special_token_ids, eos_token_ids, encoder))
    return LLTokenizer(wrapper, eos_token=sorted(eos_token_ids))


class _TokenizerFacts:
    """What the library asks of a tokenizer: these names, and a call that encodes."""

    def __init__(
        self,
        tokens: list[bytes],
        special_token_ids: frozenset[int],
        eos_token_ids: frozenset[int],
        encoder: GreedyEncoder,
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_token_ids)
        self.eos_token_id = min(eos_token_ids)
        self.bos_token_id = None
        self._encoder = encoder

    def __call__(self, text: bytes) -> list[int]:
        return self._encoder.encode(text)
