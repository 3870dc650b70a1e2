"""The keyword arguments of `LLM`, for editors and type checkers.

They are the fields of `EngineConfig` and the tokenizer's settings, where their meaning and defaults
stand; a test holds the two lists together.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

from pagewire.client.options import TemplateOptions
from pagewire.engine_config import Device, Dtype, LogprobsMode, ModelImpl, Quantization


class EngineOptions(TypedDict, total=False):
    """Settings of a stack; see `pagewire serve --help`."""

    # ModelConfig
    served_model_name: str | Sequence[str]
    max_model_len: int | None
    dtype: Dtype
    max_logprobs: int
    batch_invariant: bool
    model_impl: ModelImpl
    quantization: Quantization
    logprobs_mode: LogprobsMode
    tokenizer: str | PathLike[str] | None
    # CacheConfig
    block_size: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool
    # SchedulerConfig
    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_queued_requests: int
    max_num_queued_tokens: int
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduling_policy: Literal["fcfs", "priority"]
    watermark: float
    scheduler_reserve_full_isl: bool
    async_scheduling: bool
    # ParallelConfig
    tensor_parallel_size: int
    pipeline_parallel_size: int
    # LoadConfig
    load_format: Literal["auto", "safetensors", "gguf", "dummy"]
    revision: str | None
    # DeviceConfig
    device: Device
    num_threads: int | None
    sim_step_time_us: int
    enforce_eager: bool
    # ObservabilityConfig
    log_stats_interval_s: float
    kv_events_buffer: int
    kv_cache_metrics: bool
    kv_cache_metrics_sample: float
    # SpeculativeConfig
    speculative_method: Literal["none", "ngram"]
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int
    # StructuredOutputsConfig
    grammar_compile_timeout_s: float
    max_grammar_bytes: int
    grammar_compile_threads: int
    grammar_cache_size: int
    # AttentionConfig
    attention_backend: Literal["auto", "torch", "xformers", "cpu"]
    # TokenizerOptions
    chat_template: str | PathLike[str] | None
    trust_request_chat_template: bool


class OfflineOptions(TypedDict, total=False):
    """What `LLM.generate` takes besides sampling parameters."""

    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""
    priority: int
    """Lower is sooner; only with priority scheduling."""
    truncate_prompt_tokens: int
    """Keep only this many tokens of each prompt, its last ones; -1: as many as fit."""
    add_special_tokens: bool
    """Add the tokens that the model wants at the start of a text; True if left out."""


class OfflineChatOptions(TemplateOptions, total=False):
    """What `LLM.chat` takes besides sampling parameters."""

    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""
    priority: int
    """Lower is sooner; only with priority scheduling."""
    truncate_prompt_tokens: int
    """Keep only this many tokens of each prompt, its last ones; -1: as many as fit."""
