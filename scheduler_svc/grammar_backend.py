"""Grammars by llguidance: compiles forms, and walks them token by token.

`GrammarBackend` belongs to one vocabulary and may be used from several threads; a grammar that it
gives belongs to one request. All of it blocks: `grammar_compiler` says on which thread it runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import GrammarError
from scheduler_svc.grammar_source import describe, forces_little, grammar_source
from scheduler_svc.vocabulary import GreedyEncoder, Vocabulary

MAX_FORCED_BYTES = 256
"""A form that has forced more text than this at once is not asked any more."""
MAX_WALKED_TOKENS = 4096
"""Tokens of all requests of a form after which it is compiled anew, so that what is kept of it
does not grow with its use."""
MAX_CACHED_FORM_BYTES = 2 * 1024 * 1024
"""All compiled forms that are kept, as the clients wrote them; compiled they take some 100 times as
much."""

# Less than the library's own bounds where a hostile form would take seconds: at most a few seconds
# to compile. A token or a mask of the worst grammars found takes 14 ms with 2,000 items and
# seconds with 20,000.
_INITIAL_LEXER_FUEL = 500_000
_STEP_LEXER_FUEL = 50_000
_STEP_MAX_ITEMS = 2_000
_MAX_ITEMS_IN_ROW = 400
_MAX_LEXER_STATES = 50_000  # 1 to 2 kB each


@dataclass(slots=True)
class _Compiled:
    """A form at its start; what walks it grows the lexer that all its copies share."""

    matcher: LLMatcher
    num_walked_tokens: int = 0


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
            max_items_in_row=_MAX_ITEMS_IN_ROW,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )
        self._cache_size = cache_size
        self._cache: OrderedDict[StructuredOutputs, _Compiled] = OrderedDict()
        self._num_cached_bytes = 0
        self._lock = threading.Lock()

    def compile(self, outputs: StructuredOutputs) -> LlguidanceGrammar:
        """Return a grammar at its start.

        Raises:
            GrammarError: The form is wrong, not supported, or too complex.
        """
        compiled = self._cached(outputs)
        if compiled is None:
            compiled = _Compiled(self._compile(outputs))
            self._keep(outputs, compiled)
        return LlguidanceGrammar(self, outputs, compiled, forces_little(outputs))

    @property
    def num_cached_forms(self) -> int:
        """Compiled forms that are kept."""
        return len(self._cache)

    def _compile(self, outputs: StructuredOutputs) -> LLMatcher:
        source = grammar_source(outputs)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        compiled = _Compiled(matcher)
        grammar = LlguidanceGrammar(self, outputs, compiled, drafts=False)
        if matcher.is_error():
            raise describe(outputs, matcher.get_error())
        # The first mask is by far the dearest: it belongs to compiling, not to a step. Many a form
        # that is too complex fails only with the second one.
        allowed = int.from_bytes(grammar.masks(()), "little")
        first = (allowed & -allowed).bit_length() - 1
        probe = LlguidanceGrammar(self, outputs, compiled, drafts=False)
        probe.masks(())
        if not probe.accept(first):
            raise describe(outputs, "NoExtension")  # an end that comes before anything is whole
        probe.masks(())
        return matcher

    def compile_anew(self, outputs: StructuredOutputs, token_ids: Sequence[int]) -> LLMatcher:
        """Return a matcher of its own behind these tokens, which shares no limits with others.

        Raises:
            GrammarError: These tokens alone meet a limit.
        """
        with self._lock:
            self._drop(outputs)
        source = grammar_source(outputs)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.try_consume_tokens(list(token_ids)) < len(token_ids) or matcher.is_error():
            raise describe(outputs, matcher.get_error() or "limit")
        return matcher

    def _cached(self, outputs: StructuredOutputs) -> _Compiled | None:
        with self._lock:
            compiled = self._cache.get(outputs)
            if compiled is None or compiled.num_walked_tokens > MAX_WALKED_TOKENS:
                self._drop(outputs)
                return None
            self._cache.move_to_end(outputs)
            return compiled

    def _keep(self, outputs: StructuredOutputs, compiled: _Compiled) -> None:
        with self._lock:
            self._drop(outputs)  # compiled twice at once
            self._cache[outputs] = compiled
            self._num_cached_bytes += outputs.num_bytes
            while (
                len(self._cache) > self._cache_size
                or self._num_cached_bytes > MAX_CACHED_FORM_BYTES
            ):
                self._drop(next(iter(self._cache)))

    def _drop(self, outputs: StructuredOutputs) -> None:
        if self._cache.pop(outputs, None) is not None:
            self._num_cached_bytes -= outputs.num_bytes


class LlguidanceGrammar:
    """Implements `grammar.Grammar`.

    Guesses are tried on a copy: a matcher that meets a limit is of no use any more, and guesses
    must not end a request that would never have come that far.

    Requests of one form share its lexer and with it the limits of that. So where a limit is met,
    the form is compiled anew for this request and walked again: only one that meets it alone ends.
    """

    def __init__(
        self, backend: GrammarBackend, outputs: StructuredOutputs, compiled: _Compiled, drafts: bool
    ) -> None:
        self._backend = backend
        self._outputs = outputs
        self._compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._drafts = drafts
        self._token_ids: list[int] = []
        self._rows: list[bytes] = []
        """The last masks whose tokens have not come."""
        self._is_stale = False
        """The matcher met a limit; the next masks make another one."""
        self._has_ended = False
        """An EOS token was accepted."""

    @property
    def is_complete(self) -> bool:
        if self._is_stale:
            return False
        return self._has_ended or (self._matcher.is_stopped() and self._matcher.is_accepting())

    def accept(self, token_id: int) -> bool:
        if token_id in self._backend.eos_token_ids:
            self._has_ended = not self._has_ended and self._matcher.is_accepting()
            return self._has_ended
        if self._has_ended:
            return False
        self._token_ids.append(token_id)
        self._compiled.num_walked_tokens += 1
        row = self._rows.pop(0) if self._rows else b""
        if not self._is_stale and self._matcher.try_consume_tokens([token_id]) == 0:
            # If a mask allowed it, the limit was met since.
            self._is_stale = _has_bit(row, token_id)
            return self._is_stale
        return True

    def forced_tokens(self, max_tokens: int) -> list[int]:
        if not self._drafts or self._is_stale or self.is_complete:
            return []
        guess = self._matcher.deep_copy()
        text = guess.compute_ff_bytes()
        self._drafts = len(text) <= MAX_FORCED_BYTES and not guess.is_error()
        return self._backend.encoder.encode(text, max_tokens) if self._drafts else []

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        if self._has_ended or self._is_stale or not token_ids:
            return 0
        if self._matcher.is_stopped():  # it would take no end any more
            return int(self.is_complete and token_ids[0] in self._backend.eos_token_ids)
        # An id that no token has would break the matcher.
        known = takewhile(lambda each: each < self._backend.vocab_size, token_ids)
        return self._matcher.deep_copy().validate_tokens(list(known))

    def masks(self, draft_token_ids: Sequence[int]) -> bytes:
        row_size, num_rows = self._backend.row_size, 1 + len(draft_token_ids)
        if self._is_stale:
            self._renew()
        rows = [] if self._has_ended else [self._own_mask()]
        if draft_token_ids and rows:
            rows += self._draft_masks(draft_token_ids)
        self._rows = rows
        return b"".join(rows) + b"\xff" * row_size * (num_rows - len(rows))

    def _own_mask(self) -> bytes:
        try:
            return self._mask(self._matcher)
        except GrammarError:
            if not self._matcher.is_error():
                raise
            self._renew()
            return self._mask(self._matcher)

    def _renew(self) -> None:
        self._matcher = self._backend.compile_anew(self._outputs, self._token_ids)
        self._is_stale = False

    def _draft_masks(self, draft_token_ids: Sequence[int]) -> list[bytes]:
        """Rows behind each draft, up to the first that is not allowed or ends the form.

        Where a limit is met nothing is allowed: an output that comes there ends there.
        """
        rows: list[bytes] = []
        guess = self._matcher.deep_copy()
        for token_id in draft_token_ids[: self.valid_prefix(draft_token_ids)]:
            if token_id in self._backend.eos_token_ids:
                break
            is_taken = guess.try_consume_tokens([token_id]) == 1
            if is_taken and guess.is_stopped() and not guess.is_error():
                break
            try:
                rows.append(self._mask(guess))
            except GrammarError:
                rows.append(b"\x00" * self._backend.row_size)
                break
        return rows

    def _mask(self, matcher: LLMatcher) -> bytes:
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            raise describe(self._outputs, matcher.get_error())
        if matcher.is_stopped() and not matcher.is_accepting():
            raise describe(self._outputs, "NoExtension")
        # The library counts in words of 32 bits.
        return bits[: self._backend.row_size]


def _has_bit(row: bytes, token_id: int) -> bool:
    return token_id // 8 < len(row) and bool(row[token_id // 8] >> token_id % 8 & 1)


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
