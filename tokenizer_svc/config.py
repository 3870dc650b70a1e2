"""The tokenizer service's settings."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pagewire.kit.server import ServerConfig

_SERVER = ServerConfig(listen="127.0.0.1:50051", admin_listen="127.0.0.1:50061", metrics_port=9101)


@dataclass(frozen=True, slots=True)
class TokenizerServiceConfig:
    """Runs the tokenizer service: text to token ids and back, for one model."""

    model: str = "smollm2"
    """Model whose tokenizer is served: a Hugging Face directory, a hub id, a .gguf file, or the
    alias `smollm2` (the embedded default)."""
    tokenizer: str | None = None
    """Tokenizer in place of the model's own, in the same forms."""
    revision: str | None = None
    """Revision of a hub model."""
    chat_template: str | None = None
    """File with a Jinja chat template in place of the model's own."""
    trust_request_chat_template: bool = False
    """Let requests bring their own chat template (it runs in a sandbox with limits)."""
    max_prompt_bytes: int = 8 << 20
    """Longest prompt that is tokenized, in UTF-8 bytes."""
    num_threads: int = 0
    """Threads for work that takes longer than a millisecond; 0: one for each CPU, at most 4."""
    cache_dir: str | None = None
    """Where converted tokenizers are kept; default: ~/.cache/pagewire."""
    server: ServerConfig = _SERVER

    def __post_init__(self) -> None:
        if not 1 <= self.max_prompt_bytes <= 1 << 30:
            raise ValueError("max_prompt_bytes", self.max_prompt_bytes, "must be in [1, 1 GiB]")
        if not 0 <= self.num_threads <= 256:
            raise ValueError("num_threads", self.num_threads, "must be between 0 and 256")

    @property
    def threads(self) -> int:
        """The number of threads that `num_threads` means here."""
        return self.num_threads or min(len(os.sched_getaffinity(0)), 4)
