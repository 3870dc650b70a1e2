"""One Detokenize stream: what the `Detokenizer` has to send, in frames, until the stream is lost.

All rows of all requests that wait go into one frame; while several frames are unanswered, further
rows gather. One request frame gets one answer, in order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.detokenizer import Detokenizer, OpenRequest
from gateway.live_request import NOTHING_SPELLED, Spelling
from gateway.logprobs import ids_to_spell
from gateway.streams import StreamLostError, check_columns, expire, run_until_one_ends
from pagewire.kit.heartbeat import Watchdog, send_heartbeats
from pagewire.kit.pulse import Pulse
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc

_MAX_FRAME_TOKENS = 500_000
_MAX_FRAMES_IN_FLIGHT = 8

# As many prompt tokens as the first output token may need to be spelled right (vLLM's 5 + 2).
_NUM_CONTEXT_TOKENS = 7


@dataclass(frozen=True, slots=True)
class _ToSpell:
    """Token ids of a row whose bytes are asked for, for logprobs of the prompt and the output."""

    handle: int
    prompt: Sequence[int]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class _SentFrame:
    """What must be known of a frame until it is answered."""

    number: int
    ended_handles: frozenset[int]
    spelled: Sequence[_ToSpell]


class DetokenizerStream:
    """Owned by the tokenizer's client; used from its event loop only."""

    def __init__(
        self, stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub, detokenizer: Detokenizer
    ) -> None:
        self._detokenizer = detokenizer
        self._call: Any = stub.Detokenize()
        self._frames = itertools.count(1)
        self.pulse = Pulse()
        self.num_frames = 0
        """That came from the tokenizer."""
        self._unanswered: deque[_SentFrame] = deque()
        self._window = asyncio.Semaphore(_MAX_FRAMES_IN_FLIGHT)
        self._write_lock = asyncio.Lock()

    async def run(self) -> None:
        """Carry frames both ways until the stream is lost; always raises.

        Raises:
            StreamLostError: The tokenizer ended it or is silent.
            grpc.aio.AioRpcError: The call failed.
        """
        watchdog = Watchdog()
        try:
            await run_until_one_ends(
                self._read_frames(watchdog),
                self._write_frames(),
                send_heartbeats(self._beat),
                expire(watchdog),
            )
        finally:
            self._call.cancel()

    async def _write_frames(self) -> None:
        while True:
            await self._detokenizer.has_work.wait()
            await self._window.acquire()
            entries, closes = self._detokenizer.take_work(_MAX_FRAME_TOKENS)
            frame = tokenizer_pb2.DetokenizeRequest(frame=next(self._frames), closes=closes)
            rows = _Rows()
            for entry in entries:
                if not entry.is_opened:
                    _open(frame, entry)
                rows.add(entry)
            rows.write(frame)
            ended = frozenset([entry.handle for entry in entries if entry.end_sent])
            self._unanswered.append(_SentFrame(frame.frame, ended, rows.spelled))
            await self._write(frame)

    async def _beat(self) -> None:
        await self._write(tokenizer_pb2.DetokenizeRequest(heartbeat=self.pulse.beat()))

    async def _write(self, frame: tokenizer_pb2.DetokenizeRequest) -> None:
        async with self._write_lock:
            try:
                await self._call.write(frame)
            except asyncio.InvalidStateError:
                raise StreamLostError("the call has ended") from None

    async def _read_frames(self, watchdog: Watchdog) -> None:
        while True:
            frame = await self._call.read()
            if frame is grpc.aio.EOF:
                raise StreamLostError("the tokenizer ended the stream")
            watchdog.beat()
            self.num_frames += 1
            if frame.HasField("heartbeat"):
                self.pulse.take(frame.heartbeat)
            if frame.frame:
                self._take_answer(frame)

    def _take_answer(self, frame: tokenizer_pb2.DetokenizeResponse) -> None:
        if not self._unanswered or self._unanswered[0].number != frame.frame:
            raise StreamLostError("the answers are out of order")
        sent = self._unanswered.popleft()
        self._window.release()
        self._detokenizer.service_ns = frame.service_ns
        stops, spellings = _stops(frame), _spellings(frame, sent.spelled)
        on_text, ended_handles = self._detokenizer.on_text, sent.ended_handles
        for handle, (text, token_offset) in _texts(frame).items():
            spelling = spellings.get(handle, NOTHING_SPELLED) if spellings else NOTHING_SPELLED
            if stops and handle in stops:
                stop_index, stop_offset = stops.pop(handle)
                self._detokenizer.on_stop(handle, text, stop_offset, stop_index, spelling)
            else:
                on_text(handle, text, token_offset, handle in ended_handles, spelling)
        for handle, (stop_index, stop_offset) in stops.items():
            spelling = spellings.get(handle, NOTHING_SPELLED)
            self._detokenizer.on_stop(handle, "", stop_offset, stop_index, spelling)
        for error in frame.errors:
            self._detokenizer.on_error(error.handle, error.message)


class _Rows:
    """The rows of one frame, in columns; a column is written to the message in one go."""

    def __init__(self) -> None:
        self.spelled: list[_ToSpell] = []
        """Of the rows for which bytes are asked."""
        self._handles: list[int] = []
        self._token_counts: list[int] = []
        self._token_ids: list[int] = []
        self._ends: list[bool] = []
        self._last_is_stop_token: list[bool] = []
        self._extra_counts: dict[int, int] = {}
        """By the place of the row, where there are any."""

    def add(self, entry: OpenRequest) -> None:
        """Add a row if there is anything beyond what the request's open replays."""
        request = entry.request
        finish = request.engine_finish
        new_token_ids = request.output_token_ids[entry.num_sent_tokens :]
        if not new_token_ids and finish is None:
            return
        if request.wants_logprobs or request.waiting_prompt_logprobs is not None:
            self._spell(_to_spell(entry, new_token_ids))
        entry.num_sent_tokens += len(new_token_ids)
        self._handles.append(entry.handle)
        self._token_counts.append(len(new_token_ids))
        self._token_ids += new_token_ids
        if finish is None:
            self._ends.append(False)
            self._last_is_stop_token.append(False)
            return
        entry.end_sent = True
        self._ends.append(True)
        self._last_is_stop_token.append(
            finish.stop_token_id is not None
            and bool(new_token_ids)
            and not request.request.sampling_params.include_stop_str_in_output
        )

    def write(self, frame: tokenizer_pb2.DetokenizeRequest) -> None:
        frame.handles.extend(self._handles)
        frame.token_counts.extend(self._token_counts)
        frame.token_ids.extend(self._token_ids)
        frame.ends.extend(self._ends)
        frame.last_is_stop_token.extend(self._last_is_stop_token)
        if self.spelled:
            places = range(len(self._handles))
            frame.extra_counts.extend([self._extra_counts.get(place, 0) for place in places])
            for row in self.spelled:
                frame.extra_token_ids.extend(row.prompt)
                frame.extra_token_ids.extend(row.output)

    def _spell(self, row: _ToSpell) -> None:
        """Ask for what the row that is added now needs."""
        if num_tokens := len(row.prompt) + len(row.output):
            self._extra_counts[len(self._handles)] = num_tokens
            self.spelled.append(row)


def _open(frame: tokenizer_pb2.DetokenizeRequest, entry: OpenRequest) -> None:
    request = entry.request
    params = request.request.sampling_params
    entry.is_opened = True
    frame.opens.add(
        handle=entry.handle,
        context_token_ids=request.request.prompt_token_ids[-_NUM_CONTEXT_TOKENS:],
        output_token_ids=request.output_token_ids[: entry.num_replayed_tokens],
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        min_tokens=params.min_tokens,
    )


def _to_spell(entry: OpenRequest, new_token_ids: Sequence[int]) -> _ToSpell:
    """Collect what the logprobs that go with the row need."""
    request, prompt, output = entry.request, list[int](), list[int]()
    if request.waiting_prompt_logprobs is not None and not entry.prompt_spelled:
        entry.prompt_spelled = True
        first, *others = request.request.prompt_token_ids
        prompt = [first, *ids_to_spell(others, request.waiting_prompt_logprobs)]
    if request.wants_logprobs:
        # What waits begins with the first token that is not delivered.
        start = entry.num_sent_tokens - request.num_delivered_tokens
        output = list(ids_to_spell(new_token_ids, request.waiting_logprobs[start:]))
    return _ToSpell(entry.handle, prompt, output)


def _spellings(
    frame: tokenizer_pb2.DetokenizeResponse, spelled: Sequence[_ToSpell]
) -> dict[int, Spelling]:
    """Return the bytes that were asked for, by handle."""
    token_bytes = frame.extra_token_bytes
    if len(token_bytes) != sum(len(row.prompt) + len(row.output) for row in spelled):
        raise StreamLostError("not as many tokens are spelled as were asked for")
    spellings, start = {}, 0
    for row in spelled:
        middle = start + len(row.prompt)
        end = middle + len(row.output)
        spellings[row.handle] = Spelling(token_bytes[start:middle], token_bytes[middle:end])
        start = end
    return spellings


def _stops(frame: tokenizer_pb2.DetokenizeResponse) -> dict[int, tuple[int, int]]:
    """Return (index of the stop string, token offset) by handle."""
    check_columns(frame.stop_handles, frame.stop_indexes, frame.stop_token_offsets)
    offsets = zip(frame.stop_indexes, frame.stop_token_offsets, strict=True)
    return dict(zip(frame.stop_handles, offsets, strict=True))


def _texts(frame: tokenizer_pb2.DetokenizeResponse) -> dict[int, tuple[str, int]]:
    """Return (text, token offset) by handle; a request has two rows when its open replayed."""
    handles = frame.handles
    check_columns(handles, frame.texts, frame.token_offsets)
    rows = list(zip(frame.texts, frame.token_offsets, strict=True))
    texts = dict(zip(handles, rows, strict=True))
    if len(texts) < len(handles):
        texts.clear()
        for handle, (text, offset) in zip(handles, rows, strict=True):
            texts[handle] = (texts[handle][0] + text if handle in texts else text, offset)
    return texts
