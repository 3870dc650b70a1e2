"""`LLM`: offline work, thousands of prompts in one call, without a server to look after."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, Unpack

from pagewire.client.options import given_options
from pagewire.client.requests import Conversation
from pagewire.client.sync import Client
from pagewire.client.transport import Tls
from pagewire.client.types import RequestOutput
from pagewire.kit.errors import InvalidRequestError, PagewireError
from pagewire.offline.batches import CallOptions, cut
from pagewire.offline.errors import PromptsFailedError
from pagewire.offline.local_stack import LocalStack
from pagewire.offline.options import EngineOptions, OfflineChatOptions, OfflineOptions
from pagewire.offline.progress import progress_bar
from pagewire.offline.prompts import (
    OfflinePrompt,
    PromptLike,
    read_conversations,
    read_prompts,
)
from pagewire.offline.runner import RunLimits, run_batches
from pagewire.sampling_params import SamplingParams

DEFAULT_MODEL = "smollm2"

MAX_BATCH_OUTPUTS = 64
"""Outputs that one call asks for: enough that the costs of a call are shared, few enough that
results keep coming and that a batch in doubt is soon taken apart."""

DEFAULT_IN_FLIGHT = 512
"""Outputs asked for at a time: several times what runs at a time, so that the engine's queue never
runs dry while a batch comes to its end."""


class LLM:
    """A model for offline work. Thread-safe; close it, or use it in `with`.

    ```python
    from pagewire import LLM, SamplingParams

    with LLM(model="smollm2", max_model_len=2048) as llm:
        outputs = llm.generate(["The sky is", "Water is"], SamplingParams(temperature=0))
        for output in outputs:
            print(output.prompt, output.outputs[0].text)
    ```

    It starts a stack of its own (the same services as `pagewire serve`) behind Unix sockets, and
    ends it with itself: after `close`, after an exception, when the interpreter exits, and when the
    process is killed. With `address` it uses a running gateway instead.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        address: str | Sequence[str] | None = None,
        api_key: str | None = None,
        tls: Tls | bool = False,
        max_in_flight: int = DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        """Start a stack, or attach to one.

        Args:
            model: A Hugging Face directory, a hub id, a .gguf file, or `smollm2`, the embedded
                model and the default. With `address`: the name of a served model; None: the
                gateway's default.
            address: Of a running gateway's gRPC API; see `Client`.
            api_key: Of that gateway.
            tls: To that gateway; see `Client`.
            max_in_flight: Outputs asked for at a time.
            timeout: Seconds that a batch of prompts gets from the moment it is asked for, the
                engine's queue included; those that are not done by then fail. None: no limit here.
            engine: Settings of the stack of its own, with the names of `pagewire serve`.

        Raises:
            TypeError: An unknown setting, or settings of a stack together with `address`.
            ValueError: A setting has a wrong value; it names it.
            ServiceUnavailableError: The stack did not start; it has said why on standard error.
        """
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight: {max_in_flight} must be at least 1")
        self._max_in_flight = max_in_flight
        self._timeout = timeout
        self._stack: LocalStack | None = None
        self._model = ""
        if address is not None:
            if engine:
                raise TypeError(f"{sorted(engine)[0]} is a setting of a stack, and address has one")
            self._model = model or ""
            self._client = Client(address, api_key=api_key, tls=tls)
        else:
            if api_key is not None or tls:
                raise TypeError("api_key and tls belong to address")
            settings = {"model": model or DEFAULT_MODEL, **engine}
            self._stack = LocalStack(settings)
            self._client = Client(self._stack.target, api_key=self._stack.api_key)
        # Runs at garbage collection and at the interpreter's exit, too; it must not hold `self`.
        self._close = weakref.finalize(self, _close, self._client, self._stack)

    @property
    def client(self) -> Client:
        """A client of the same gateway, for single requests, streams and tokenizing."""
        return self._client

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        use_tqdm: bool | Callable[..., Any] = True,
        **options: Unpack[OfflineOptions],
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: Texts, lists of token ids, or vLLM's dictionaries; one alone works, too.
            sampling_params: For all, or one for each prompt. None: the model's defaults, and at
                most 16 tokens. `max_tokens=None` in them means: as many as the context holds.
            n: Outputs of each prompt; needs a temperature above 0 if more than 1.
            use_tqdm: Show a progress bar if tqdm is installed; or a class to use in its place.
            options: See `OfflineOptions`.

        Returns:
            One output a prompt, in the order of the prompts.

        Raises:
            PromptsFailedError: Some prompts failed. All others were finished first: they are in its
                `outputs`, and `errors` says which failed and why.
            PagewireError: What is wrong is wrong for all: nothing is kept.
        """
        given = given_options(options, OfflineOptions)
        return self._run(read_prompts(prompts, sampling_params), n, use_tqdm, given)

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        use_tqdm: bool | Callable[..., Any] = True,
        **options: Unpack[OfflineChatOptions],
    ) -> list[RequestOutput]:
        """Answer conversations, through the model's chat template.

        Args:
            conversations: Lists of messages (`ChatMessage`, or dictionaries with role and content);
                one alone works, too.
            sampling_params: For all, or one for each. None: the model's defaults.
            n: Outputs of each conversation.
            use_tqdm: As in `generate`.
            options: See `OfflineChatOptions`.

        Returns:
            One output a conversation, in their order. The text is the model's own: calls of tools
            and marks of reasoning are in it.

        Raises:
            PromptsFailedError: As in `generate`.
            PagewireError: As in `generate`.
        """
        given = given_options(options, OfflineChatOptions)
        return self._run(read_conversations(conversations, sampling_params), n, use_tqdm, given)

    def close(self) -> None:
        """End the stack of its own, if there is one, and wait for its end; idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: list[OfflinePrompt],
        n: int,
        use_tqdm: bool | Callable[..., Any],
        options: Mapping[str, Any],
    ) -> list[RequestOutput]:
        if not self._close.alive:
            raise RuntimeError("the LLM is closed")
        if n < 1:
            raise InvalidRequestError(
                "n: must be at least 1", reason="INVALID_PARAMETER", field="n"
            )
        batch_size = max(1, min(MAX_BATCH_OUTPUTS, self._max_in_flight) // n)
        limits = RunLimits(max(1, self._max_in_flight // (batch_size * n)), self._timeout)
        call = CallOptions(n, {**options, "model": self._model})
        is_alive = self._stack.is_alive if self._stack is not None else lambda: True
        results = run_batches(self._client, cut(prompts, batch_size), call, limits, is_alive)
        outputs: list[RequestOutput | None] = [None] * len(prompts)
        errors: dict[int, PagewireError] = {}
        with closing(results), progress_bar(len(prompts), use_tqdm) as advance:
            for index, result in results:
                if isinstance(result, PagewireError):
                    errors[index] = result
                    advance(None)
                else:
                    outputs[index] = result
                    advance(result)
        if errors:
            raise PromptsFailedError(errors, outputs)
        return [output for output in outputs if output is not None]


def _close(client: Client, stack: LocalStack | None) -> None:
    client.close()
    if stack is not None:
        stack.close()
