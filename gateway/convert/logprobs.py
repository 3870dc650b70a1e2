"""Log-probabilities as the public contract has them: columns with ids and bytes."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.generation import TokenLogprobs
from pagewire.v1 import inference_pb2


def token_logprobs(places: Iterable[TokenLogprobs]) -> inference_pb2.TokenLogprobs:
    """Return one row a place."""
    columns = inference_pb2.TokenLogprobs()
    for place in places:
        columns.token_ids.append(place.token.token_id)
        columns.token_bytes.append(place.token.token_bytes)
        columns.logprobs.append(place.token.logprob)
        columns.ranks.append(place.token.rank)
        columns.top_counts.append(len(place.top))
        for candidate in place.top:
            columns.top_token_ids.append(candidate.token_id)
            columns.top_token_bytes.append(candidate.token_bytes)
            columns.top_logprobs.append(candidate.logprob)
    return columns
