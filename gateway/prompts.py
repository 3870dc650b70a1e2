"""Prompts to token ids, and back to the text that `echo` shows, with the tokenizer's help.

Truncation belongs here; whether what is left fits the model's context is `request_plan`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gateway.generation import ChatPrompt, GenerationRequest, TruncationSide
from gateway.tokenizer_client import TokenizerClient
from pagewire.sampling_params import SamplingParams


async def tokenize_prompts(
    tokenizer: TokenizerClient, request: GenerationRequest, limit: int | None
) -> list[Sequence[int]]:
    """Return the token ids of each prompt; all texts go in one call.

    Args:
        tokenizer: Knows the model's vocabulary and template.
        request: Its prompts are taken.
        limit: Most tokens of a prompt, the others are cut off; None: all are kept.
    """
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    conversations = [prompt for prompt in request.prompts if isinstance(prompt, ChatPrompt)]
    special = request.add_special_tokens
    encoded = iter(await tokenizer.encode(texts, special) if texts else ())
    rendered = iter(await asyncio.gather(*map(tokenizer.render_chat, conversations)))
    rows: list[Sequence[int]] = []
    for prompt in request.prompts:
        if isinstance(prompt, tuple):
            rows.append(prompt)
        else:
            rows.append(next(encoded if isinstance(prompt, str) else rendered))
    if limit is None:
        return rows
    bos = tokenizer.info.bos_token_id if tokenizer.info and texts and special else None
    return [
        truncate(row, limit, request.truncation_side, bos if isinstance(prompt, str) else None)
        for row, prompt in zip(rows, request.prompts, strict=True)
    ]


def truncate(
    token_ids: Sequence[int], limit: int, side: TruncationSide, bos_token_id: int | None = None
) -> Sequence[int]:
    """Return at most `limit` tokens.

    Args:
        token_ids: A prompt.
        limit: At least 1.
        side: Where tokens are cut off.
        bos_token_id: What the tokenizer has put before a text, if anything: it stays.
    """
    if len(token_ids) <= limit:
        return token_ids
    if side is TruncationSide.RIGHT:
        return token_ids[:limit]
    if limit > 1 and bos_token_id is not None and token_ids[0] == bos_token_id:
        return [bos_token_id, *token_ids[1 - limit :]]
    return token_ids[-limit:]


async def tokenize_bad_words(
    tokenizer: TokenizerClient, params: SamplingParams, vocab_size: int
) -> SamplingParams:
    """Return the parameters with the token ids of their bad words.

    Raises:
        InvalidRequestError: A word has too many tokens, or none.
    """
    if not params.bad_words:
        return params
    rows = await tokenizer.encode_bad_words(params.bad_words)
    params = replace(params, bad_words_token_ids=tuple(dict.fromkeys(map(tuple, rows))))
    params.check_vocabulary(vocab_size)
    return params


async def prompt_texts(
    tokenizer: TokenizerClient, request: GenerationRequest, rows: Sequence[Sequence[int]]
) -> list[str]:
    """Return each prompt as text: as the client wrote it, or decoded where it did not.

    Args:
        tokenizer: Decodes.
        request: Its prompts as they came.
        rows: The same as token ids.
    """
    is_whole = request.truncate_prompt_tokens is None
    written = [each if isinstance(each, str) and is_whole else None for each in request.prompts]
    to_decode = [row for row, text in zip(rows, written, strict=True) if text is None]
    decoded = iter(await tokenizer.decode(to_decode, False) if to_decode else ())
    return [next(decoded) if text is None else text for text in written]
