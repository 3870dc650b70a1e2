"""A scheduler that follows a random script: any tokens, any pace, any end, errors, lost streams."""

from __future__ import annotations

import random
from typing import Any

from pagewire.v1 import common_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.fake_tokenizer import EOS

_INTERNAL = 13
_FRAMES_A_STREAM = 5
_ENDS = (
    (common_pb2.FINISH_REASON_STOP, EOS),
    (common_pb2.FINISH_REASON_LENGTH, None),
    (common_pb2.FINISH_REASON_ABORT, None),
    (common_pb2.FINISH_REASON_REPETITION, None),
)


class ScriptedScheduler(FakeScheduler):
    """Like `FakeScheduler`, but for its tokens, which `seed` decides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._num_frames = 0

    async def _pump(self, stream: Any) -> None:
        while True:
            stream.added.clear()
            if not stream.running:
                await stream.added.wait()
                continue
            await stream.write(self._frame(stream.running))
            self._num_frames += 1
            if self._num_frames % _FRAMES_A_STREAM == 0:
                self.lose_streams()

    def _frame(self, running: dict[int, tuple[Any, list[int]]]) -> Any:
        frame = scheduler_pb2.EngineStreamResponse()
        for handle, (add, done) in list(running.items()):
            roll = self._random.random()
            if roll < 0.02:
                error = {"code": _INTERNAL, "reason": "SCRIPTED", "message": "as the script says"}
                frame.errors.add(handle=handle, **error)
                del running[handle]
            elif roll < 0.7:
                self._row(frame.outputs, handle, add, done)
                if roll < 0.2:
                    self._end(frame.outputs, handle, done)
                    del running[handle]
        return frame

    def _row(self, outputs: Any, handle: int, add: Any, done: list[int]) -> None:
        params, is_first = add.sampling_params, not done
        token_ids = [self._random.randrange(256) for _ in range(self._random.randint(1, 4))]
        done += token_ids
        outputs.handles.append(handle)
        outputs.token_counts.append(len(token_ids))
        outputs.token_ids.extend(token_ids)
        if params.HasField("logprobs"):
            outputs.logprob_handles.append(handle)
            self._logprobs(outputs.logprobs, len(token_ids), params.logprobs)
        if params.HasField("prompt_logprobs") and is_first:
            outputs.prompt_logprob_handles.append(handle)
            outputs.prompt_logprob_counts.append(len(add.prompt_token_ids) - 1)
            count = len(add.prompt_token_ids) - 1
            self._logprobs(outputs.prompt_logprobs, count, params.prompt_logprobs)

    def _logprobs(self, columns: Any, num_tokens: int, num_top: int) -> None:
        columns.logprobs.extend(-self._random.random() for _ in range(num_tokens))
        columns.ranks.extend([1] * num_tokens)
        columns.top_counts.extend([num_top] * num_tokens)
        columns.top_token_ids.extend(
            self._random.randrange(256) for _ in range(num_tokens * num_top)
        )
        columns.top_logprobs.extend([-1.0] * num_tokens * num_top)

    def _end(self, outputs: Any, handle: int, done: list[int]) -> None:
        reason, matched = self._random.choice(_ENDS)
        if matched is not None:
            done[-1] = outputs.token_ids[-1] = matched
        outputs.finished_handles.append(handle)
        outputs.finish_reasons.append(reason)
        outputs.stop_token_ids_plus_one.append(0 if matched is None else matched + 1)
