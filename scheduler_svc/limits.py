"""The numbers that the sans-IO core schedules by.

They are resolved once the worker has said what the model and the device hold (`engine_core` builds
them from the `EngineConfig` and the worker's answer) and never change afterwards. This module does
not know where a number came from.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_svc.kv_cache_groups import ONE_FULL_GROUP, KvCacheGroups, max_step_tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits and switches of one scheduler, validated as a whole."""

    max_model_len: int
    """Most tokens of a request, prompt and output together."""
    max_num_batched_tokens: int
    """Most tokens scheduled in one step."""
    max_num_seqs: int
    """Most running requests ("seqs" is vLLM's name for them in this one flag)."""
    block_size: int
    """Tokens of a KV block."""
    num_blocks: int
    """KV blocks of the pool, the null block included."""
    vocab_size: int
    """Token ids are below this."""
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end an output unless the request ignores them."""
    enable_prefix_caching: bool = True
    """Share full blocks between requests with the same beginning."""
    enable_chunked_prefill: bool = True
    """Cut a prompt at the remaining token budget."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step; 0: no such cap."""
    reserve_full_isl: bool = True
    """Admit a request only if blocks for its whole sequence fit now, not just its first chunk."""
    watermark: float = 0.0
    """Fraction of the pool that admissions leave free while something else runs."""
    max_num_queued_requests: int = 10_000
    """Most waiting requests; more are refused."""
    max_num_queued_tokens: int = 20_000_000
    """Most tokens of waiting requests together; more are refused."""
    policy: str = "fcfs"
    """Order of the waiting queue and choice of preemption victims."""
    kv_cache_groups: KvCacheGroups = ONE_FULL_GROUP
    """Groups of layers with block tables of their own, all from the one pool."""
    max_logprobs: int = 20
    """Most candidates that a request may ask for, of a token."""
    num_stages: int = 1
    """Pipeline stages. With several a request whose next token is under way is in no other step:
    the first stage has that token only when the last one has drawn it."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks={self.num_blocks}: must be at least 2 (one is null)")
        if self.num_stages < 1:
            raise ValueError(f"num_stages={self.num_stages}: must be at least 1")
        if not self.kv_cache_groups:
            raise ValueError("kv_cache_groups: there must be at least one")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark={self.watermark}: must be in [0, 1)")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: must be at least"
                f" max_model_len={self.max_model_len} when chunked prefill is off"
            )

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of one request between what is surely computed and the end of a step."""
        return max_step_tokens(self.max_num_batched_tokens, self.long_prefill_token_threshold)
