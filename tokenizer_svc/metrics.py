"""The tokenizer service's figures for Prometheus; counted once a call or a frame.

It knows neither tokenizer nor streams: they count, and this shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.kit.metric_families import counter


@dataclass(slots=True, eq=False)
class TokenizerCounters(Collector):
    """Grow forever. Counted on the event loop, read on the exposition's thread."""

    num_encoded_texts: int = 0
    num_encoded_tokens: int = 0
    """Of those texts."""
    num_detokenized_tokens: int = 0
    """New output tokens that came to streams, without those that opened requests bring along."""

    def encoded(self, rows: list[list[int]]) -> None:
        """Count texts by their token ids."""
        self.num_encoded_texts += len(rows)
        self.num_encoded_tokens += sum(map(len, rows))

    def collect(self) -> Iterator[Metric]:
        yield counter(
            "tokenizer_encoded_texts",
            "Texts turned into tokens.",
            (),
            [((), self.num_encoded_texts)],
        )
        yield counter(
            "tokenizer_encoded_tokens",
            "Tokens of those texts.",
            (),
            [((), self.num_encoded_tokens)],
        )
        yield counter(
            "tokenizer_detokenized_tokens",
            "Output tokens turned into text.",
            (),
            [((), self.num_detokenized_tokens)],
        )
