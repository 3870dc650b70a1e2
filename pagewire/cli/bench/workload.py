"""Random prompts of given lengths, with beginnings that they may share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.cli.bench.record import Job

# Below are control tokens of common vocabularies; above, some have no tokens.
FIRST_TOKEN_ID, END_TOKEN_ID = 1000, 30_000
# Common English words that are one token, with the space before them, to most tokenizers.
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "car",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """What random requests are like; lengths in tokens, of text about so many."""

    num_requests: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    """Tokens at the beginning of each prompt, before the `input_len` others, that it shares."""
    num_prefixes: int = 1
    """Different beginnings; requests have them in turns."""
    range_ratio: float = 0.0
    """Input and output lengths are drawn evenly from (1 - ratio) to (1 + ratio) times theirs."""
    as_text: bool = False
    """Prompts are words, for servers that take no token ids."""

    def jobs(self, arrivals: Iterable[float], rng: random.Random) -> list[Job]:
        """Return the requests in the order in which they are due."""
        prefixes = [self._tokens(self.prefix_len, rng) for _ in range(self.num_prefixes)]
        jobs = []
        for index, due_s in zip(range(self.num_requests), arrivals, strict=False):
            own = self._tokens(self._length(self.input_len, rng), rng)
            prompt = [*prefixes[index % self.num_prefixes], *own]
            output_len = self._length(self.output_len, rng)
            jobs.append(Job(self._prompt(prompt), output_len, due_s))
        return jobs

    def _length(self, length: int, rng: random.Random) -> int:
        spread = int(length * self.range_ratio)
        return max(1, rng.randint(length - spread, length + spread)) if spread else length

    def _tokens(self, num_tokens: int, rng: random.Random) -> list[int]:
        end = len(_WORDS) if self.as_text else END_TOKEN_ID
        start = 0 if self.as_text else FIRST_TOKEN_ID
        return [rng.randrange(start, end) for _ in range(num_tokens)]

    def _prompt(self, tokens: Sequence[int]) -> str | Sequence[int]:
        return " ".join(_WORDS[token] for token in tokens) if self.as_text else tokens
