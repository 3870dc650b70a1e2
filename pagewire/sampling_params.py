"""How a request's tokens are chosen and when it ends: values, bounds and defaults.

Shared by the gateway, the SDK, the scheduler and the worker, so that a value is checked once and
means the same everywhere. It knows nothing of the wire (each service's `convert` does that) and of
the model (checks against the vocabulary take its size as an argument).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pagewire.kit.errors import InvalidRequestError

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy (vLLM V1's rule)."""

MIN_TEMPERATURE = 0.01
"""A temperature above zero and below this is raised to it, as vLLM V1 does."""

MAX_INTEGER = 2**31 - 1
"""Bound of counts, far above any context length: what every signed 32-bit field can hold."""

MAX_STOP_STRINGS = 4
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 256
"""Bound of what any engine may allow; each engine has a lower one of its own."""
MAX_LOGPROB_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 16_384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 64
MAX_REASONING_TAG_CHARS = 64
MAX_REASONING_TAG_TOKENS = 64
UNLIMITED_THINKING = -1


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """A form that the whole output has; exactly one field is set."""

    json_schema: str | None = None
    """A JSON schema, as JSON text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression that matches the whole output."""
    choice: tuple[str, ...] = ()
    """One of these texts."""
    grammar: str | None = None
    """A grammar in Lark's notation, as llguidance understands it."""
    structural_tag: str | None = None
    """Free text in which some parts have a form, as JSON text: `{"structures": [{"begin": ...,
    "schema": ..., "end": ...}], "triggers": [...]}`, where behind a trigger stands one of the
    structures that begin with it; or `{"format": {"type": ..., ...}}`, a tree of formats."""
    reasoning_end: str = ""
    """The form begins behind this text, before which anything goes; empty: it begins at once."""
    reasoning_start: str = ""
    """Only an output that begins with this text has such a part; empty: every one has."""

    def __post_init__(self) -> None:
        given = (self.json_schema, self.regex, self.grammar, self.structural_tag)
        num_given = sum(each is not None for each in given)
        num_given += bool(self.json_object) + bool(self.choice)
        if num_given != 1:
            rule = (
                "exactly one of json_schema, json_object, regex, choice, grammar and structural_tag"
                " must be set"
            )
            raise _invalid("structured_outputs", num_given, rule)
        if self.reasoning_start and not self.reasoning_end:
            rule = "reasoning_start needs reasoning_end"
            raise _invalid("structured_outputs", self.reasoning_start, rule)
        for text in (self.reasoning_start, self.reasoning_end):
            if len(text) > MAX_REASONING_TAG_CHARS or not text.isprintable():
                rule = f"a tag of reasoning is printable, with {MAX_REASONING_TAG_CHARS} characters"
                raise _invalid("structured_outputs", "...", rule)
        if any(not isinstance(text, str) for text in self.texts):
            rule = "a form is text; give a JSON schema as json.dumps(schema)"
            raise _invalid("structured_outputs", "...", rule)
        if any(not _is_unicode(text) for text in self.texts):
            raise _invalid("structured_outputs", "...", "a text must not hold a lone surrogate")
        if any(text == "" for text in self.texts):
            raise _invalid("structured_outputs", "''", "a text must not be empty")

    @property
    def texts(self) -> tuple[str, ...]:
        """What the client wrote."""
        single = (self.json_schema, self.regex, self.grammar, self.structural_tag)
        return (*(text for text in single if text is not None), *self.choice)

    @property
    def num_bytes(self) -> int:
        """Length of all texts in UTF-8."""
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How much a request may think, in the words of an engine, which knows no text."""

    max_tokens: int
    """Of thinking, its tags aside; the end is forced behind them."""
    start_token_ids: tuple[int, ...]
    """What begins thinking."""
    end_token_ids: tuple[int, ...]
    """What ends it."""
    num_open_tokens: int | None = None
    """Tokens of thinking that the prompt leaves open, which count; None: none goes on there."""

    def __post_init__(self) -> None:
        for value in (self.max_tokens, self.num_open_tokens):
            if value is not None and not 0 <= value <= MAX_INTEGER:
                raise _invalid("thinking_budget", value, f"must be between 0 and {MAX_INTEGER}")
        for tag in (self.start_token_ids, self.end_token_ids):
            if not 1 <= len(tag) <= MAX_REASONING_TAG_TOKENS:
                rule = f"a tag has between 1 and {MAX_REASONING_TAG_TOKENS} tokens"
                raise _invalid("thinking_budget", len(tag), rule)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request; every field has the OpenAI / vLLM default."""

    temperature: float = 1.0
    """0 is greedy; else logits are divided by it. In [0, 2]."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this. In (0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this times the most likely one. In [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that the output has. In [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output. In [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output. In
    [1e-6, 1e6]: far below, logits would leave float32."""
    seed: int | None = None
    """64-bit seed of the draws; the gateway fills it in when the client gave none."""
    max_tokens: int | None = None
    """Most output tokens; None: as many as the context holds."""
    min_tokens: int = 0
    """No end before this many output tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output, found in the text after the fact."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output."""
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the stop token's text, in the text."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    logprobs: int | None = None
    """Return the log-probability of each output token and of this many most likely ones."""
    logprob_token_ids: tuple[int, ...] = ()
    """Return the log-probability of each output token and of exactly these ones, in this order, in
    place of the most likely ones; at most 128, each once. `logprobs` must be their number then, or
    left out (vLLM's rule: `SamplingParams.logprob_token_ids` in vllm/sampling_params.py)."""
    prompt_logprobs: int | None = None
    """Return the log-probability of each prompt token and of this many most likely ones."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these token ids; each in [-100, 100], at most 1024 of them."""
    allowed_token_ids: tuple[int, ...] = ()
    """If not empty, only these can be drawn. At most 16384."""
    bad_words: tuple[str, ...] = ()
    """Words that the output must not hold; tokenized by the gateway. At most 128."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """`bad_words` as token ids, both with and without a leading space. At most 64 tokens each."""
    structured_outputs: StructuredOutputs | None = None
    """What the output must be; None: anything."""
    thinking_token_budget: int | None = None
    """Most tokens of thinking, those that the prompt leaves open counted; behind them the end of
    thinking is forced. -1 or None: no bound. Needs a gateway with --reasoning-parser."""
    thinking_budget: ThinkingBudget | None = None
    """`thinking_token_budget` in token ids; made by the gateway."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_numbers()
        self._check_lengths()
        self._check_logprobs()
        self._check_stops()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def num_logprobs(self) -> int | None:
        """How many log-probabilities come beside that of each output token; None: not even its."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    def normalized(self) -> SamplingParams:
        """Values that mean the same written one way, so that later code need not ask twice."""
        wanted: dict[str, float | None] = {
            "temperature": max(self.temperature, MIN_TEMPERATURE),
            "top_k": max(self.top_k, 0),
        }
        if self.is_greedy:
            wanted = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        if self.thinking_token_budget == UNLIMITED_THINKING:
            wanted["thinking_token_budget"] = None
        changes = {name: value for name, value in wanted.items() if getattr(self, name) != value}
        # A copy is checked anew, which takes longer than all else here.
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidRequestError: A token id is outside [0, vocab_size).
        """
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_token_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        check_token_ids("logprob_token_ids", self.logprob_token_ids, vocab_size)
        check_token_ids("logit_bias", (token_id for token_id, _ in self.logit_bias), vocab_size)
        for word in self.bad_words_token_ids:
            check_token_ids("bad_words", word, vocab_size)
        if self.thinking_budget is not None:
            for tag in (self.thinking_budget.start_token_ids, self.thinking_budget.end_token_ids):
                check_token_ids("thinking_budget", tag, vocab_size)

    def _check_numbers(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        for token_id, bias in self.logit_bias:
            _check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
        if not -1 <= self.top_k <= MAX_INTEGER:
            rule = f"must be -1 or 0 (off) or between 1 and {MAX_INTEGER}"
            raise _invalid("top_k", self.top_k, rule)
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise _invalid("seed", self.seed, "must fit in 64 bits")

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MAX_INTEGER:
            raise _invalid("max_tokens", self.max_tokens, f"must be between 1 and {MAX_INTEGER}")
        if not 0 <= self.min_tokens <= MAX_INTEGER:
            raise _invalid("min_tokens", self.min_tokens, f"must be between 0 and {MAX_INTEGER}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid(
                "min_tokens", self.min_tokens, f"must be at most max_tokens ({self.max_tokens})"
            )
        budget = self.thinking_token_budget
        if budget is not None and not UNLIMITED_THINKING <= budget <= MAX_INTEGER:
            rule = f"must be -1 (no bound) or between 0 and {MAX_INTEGER}"
            raise _invalid("thinking_token_budget", budget, rule)

    def _check_logprobs(self) -> None:
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                raise _invalid(name, value, f"must be between 0 and {MAX_LOGPROBS}")
        token_ids, name = self.logprob_token_ids, "logprob_token_ids"
        _check_size(name, len(token_ids), MAX_LOGPROB_TOKEN_IDS, "ids")
        if len(set(token_ids)) < len(token_ids):
            twice = next(each for each in token_ids if token_ids.count(each) > 1)
            raise _invalid(name, twice, "name each id once")
        if token_ids and self.logprobs not in (None, len(token_ids)):
            rule = f"with logprob_token_ids it must be their number ({len(token_ids)}), or left out"
            raise _invalid("logprobs", self.logprobs, rule)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _invalid(
                "stop", len(self.stop), f"at most {MAX_STOP_STRINGS} strings are allowed"
            )
        if any(not text for text in self.stop):
            raise _invalid("stop", "''", "an empty stop string would end every output")
        if any(len(text) > MAX_STOP_STRING_CHARS for text in self.stop):
            raise _invalid(
                "stop", "...", f"a stop string has at most {MAX_STOP_STRING_CHARS} characters"
            )
        if any(not _is_unicode(text) for text in self.stop):
            raise _invalid("stop", "...", "a stop string must not hold a lone surrogate")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise _invalid(
                "stop_token_ids",
                len(self.stop_token_ids),
                f"at most {MAX_STOP_TOKEN_IDS} are allowed",
            )

    def _check_sizes(self) -> None:
        """What the worker goes through in every step that has the request."""
        num_words = max(len(self.bad_words), -(-len(self.bad_words_token_ids) // 2))
        _check_size("logit_bias", len(self.logit_bias), MAX_LOGIT_BIASES, "entries")
        _check_size("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS, "ids")
        _check_size("bad_words", num_words, MAX_BAD_WORDS, "words")
        if any(not word for word in (*self.bad_words, *self.bad_words_token_ids)):
            raise _invalid("bad_words", "''", "a bad word must not be empty")
        longest = max((len(word) for word in self.bad_words_token_ids), default=0)
        _check_size("bad_words", longest, MAX_BAD_WORD_TOKENS, "tokens in one word")


def check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuse token ids outside [0, vocab_size), naming `field`.

    Raises:
        InvalidRequestError: Names the first offending id and the vocabulary's size.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise _invalid(field, token_id, f"token ids of this model are 0 to {vocab_size - 1}")


def _is_unicode(text: str) -> bool:
    """Whether UTF-8, and with it a message, can hold the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_range(
    field: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise _invalid(field, value, f"must be a finite number in {bracket}{low:g}, {high:g}]")


def _check_size(field: str, size: int, most: int, what: str) -> None:
    if size > most:
        raise InvalidRequestError(
            f"{field}: {size} {what} are too many: at most {most} are allowed",
            reason="INVALID_PARAMETER",
            field=field,
        )


def _invalid(field: str, value: object, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field}: {value} is not valid: {rule}", reason="INVALID_PARAMETER", field=field
    )
