"""The one configuration object of an engine: built once, checked as a whole, frozen.

`scheduler_svc` owns it; workers get it in `Initialize`, the gateway asks `GetEngineInfo` for the
little that it needs. Every field is a flag (`--max-model-len`), an environment variable
(`PAGEWIRE_MAX_MODEL_LEN`) and a key of the optional YAML file; names and defaults are vLLM's where
vLLM has the setting. The docstring under a field is its `--help` text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from pagewire.sampling_params import MAX_LOGPROBS

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda", "sim"]
ModelImpl = Literal["auto", "pagewire", "transformers"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
Quantization = Literal["none", "int8", "int4"]


def check(name: str, value: object, ok: bool, rule: str) -> None:
    """Raise the error that every config check raises.

    Raises:
        ValueError: With (name, value, rule), which `pagewire.kit.config` turns into one line that
            names the flag.
    """
    if not ok:
        raise ValueError(name, value, rule)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, in which form."""

    model: str = "smollm2"
    """A Hugging Face directory, a hub id, a .gguf file, or the alias `smollm2` (the embedded
    SmolLM2-135M-Instruct)."""
    served_model_name: tuple[str, ...] = ()
    """Names that clients may use; the first stands in answers. Default: the value of --model."""
    max_model_len: int | None = None
    """Longest sequence in tokens, prompt and output together. Default: what the model was made
    for."""
    dtype: Dtype = "auto"
    """Type of weights and activations. `auto`: bfloat16, or float32 where that is faster; on a CPU
    the bits of the file where --attention-backend cpu can run it."""
    max_logprobs: int = 20
    """Most logprobs that a request may ask for, at most 256."""
    batch_invariant: bool = False
    """Same numbers whatever the batch: one weight format, no choice of kernel by token count."""
    model_impl: ModelImpl = "auto"
    """Whose model code runs. `auto`: this project's own where there is one for the architecture,
    else that of Hugging Face transformers; `pagewire` and `transformers` force one of the two."""
    quantization: Quantization = "none"
    """Form of the linear layers' weights in memory, made while they are loaded; embeddings and LM
    head stay in --dtype. `int8`: 8 bits with a scale a row; `int4`: 4 bits in groups of 32. What a
    GGUF file has in that form (Q8_0; Q4_0 and Q4_1) is kept as it is."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """What is returned as logprobs. `raw`: before penalties, temperature and all else that a
    request asks for; `processed`: after it, of what could be drawn. `logits`: not normalized.
    Those of prompt tokens are always raw logprobs."""
    tokenizer: str | None = None
    """Tokenizer in place of the model's own, in the same forms."""

    def __post_init__(self) -> None:
        check("model", self.model, bool(self.model), "must not be empty")
        if self.max_model_len is not None:
            check(
                "max_model_len", self.max_model_len, self.max_model_len >= 2, "must be at least 2"
            )
        rule = f"must be between 0 and {MAX_LOGPROBS}"
        check("max_logprobs", self.max_logprobs, 0 <= self.max_logprobs <= MAX_LOGPROBS, rule)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens in a KV block."""
    gpu_memory_utilization: float = 0.92
    """CUDA only (and `pagewire simulate`): share of the device's memory that may be used. A CPU
    worker refuses it: see --kv-cache-memory-bytes."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache; set, it replaces the memory profile. Default on a CPU: a fraction of
    what the container may use, at most 1 GiB."""
    num_gpu_blocks_override: int | None = None
    """Number of KV blocks, whatever the memory profile says."""
    enable_prefix_caching: bool = True
    """Reuse the KV of full blocks that requests have in common."""

    def __post_init__(self) -> None:
        size = self.block_size
        check("block_size", size, 1 <= size <= 1024, "must be between 1 and 1024")
        share = self.gpu_memory_utilization
        check("gpu_memory_utilization", share, 0 < share <= 1, "must be in (0, 1]")
        if self.kv_cache_memory_bytes is not None:
            kv_bytes = self.kv_cache_memory_bytes
            check("kv_cache_memory_bytes", kv_bytes, kv_bytes > 0, "must be positive")
        if self.num_gpu_blocks_override is not None:
            blocks = self.num_gpu_blocks_override
            check("num_gpu_blocks_override", blocks, blocks >= 2, "must be at least 2")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Batching and queueing."""

    max_num_batched_tokens: int = 2048
    """Most tokens in one step."""
    max_num_seqs: int = 128
    """Most running requests. (`seqs` is vLLM's name for requests.)"""
    max_num_queued_requests: int = 10_000
    """Most waiting requests; one more is refused (429, RESOURCE_EXHAUSTED)."""
    max_num_queued_tokens: int = 20_000_000
    """Most prompt tokens of waiting requests; more is refused."""
    enable_chunked_prefill: bool = True
    """Cut a prompt at the step's remaining token budget."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0: no limit but the budget."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of the waiting queue and of preemption. `priority`: a lower `priority` of the request
    goes first, then an earlier arrival."""
    watermark: float = 0.0
    """Share of the KV blocks kept free when a waiting request is admitted beside others."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if blocks for its whole sequence fit now, not just its first chunk."""
    async_scheduling: bool = True
    """Plan and send the next step while one runs, so that the worker need not wait for it. A
    request that ends by a token, not by length, costs at most one token more."""

    def __post_init__(self) -> None:
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        check("max_num_seqs", seqs, seqs >= 1, "must be at least 1")
        rule = f"must be at least max_num_seqs ({seqs})"
        check("max_num_batched_tokens", tokens, tokens >= seqs, rule)
        queued = self.max_num_queued_requests
        check("max_num_queued_requests", queued, queued >= 1, "must be at least 1")
        queued_tokens = self.max_num_queued_tokens
        check("max_num_queued_tokens", queued_tokens, queued_tokens >= 1, "must be at least 1")
        threshold = self.long_prefill_token_threshold
        check("long_prefill_token_threshold", threshold, threshold >= 0, "must not be negative")
        check("watermark", self.watermark, 0 <= self.watermark < 1, "must be in [0, 1)")


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many workers one replica has."""

    tensor_parallel_size: int = 1
    """Workers that share each layer; it must divide the model's heads."""
    pipeline_parallel_size: int = 1
    """Groups of workers that each hold a part of the layers."""

    def __post_init__(self) -> None:
        tp_size, pp_size = self.tensor_parallel_size, self.pipeline_parallel_size
        check("tensor_parallel_size", tp_size, 1 <= tp_size <= 64, "must be 1 to 64")
        # Workers take no more than 16 steps at a time: one a stage and one more.
        check("pipeline_parallel_size", pp_size, 1 <= pp_size <= 15, "must be 1 to 15")

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Where weights come from."""

    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    """File format of the weights; `dummy`: random weights of the model's shape."""
    revision: str | None = None
    """Revision of a hub model."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What the worker runs on."""

    device: Device = "auto"
    """`auto`: cuda where there is one, else cpu. `sim`: the simulated worker, which needs no torch
    and checks block tables by reading its tokens back through them."""
    num_threads: int | None = None
    """Threads of the worker's CPU kernels. Default: the cores it may use."""
    sim_step_time_us: int = 0
    """Fixed time of a simulated step in microseconds; 0: none."""
    enforce_eager: bool = False
    """CUDA only: record no CUDA graphs. A worker starts faster, and takes longer for each token."""

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            check("num_threads", self.num_threads, self.num_threads >= 1, "must be at least 1")
        step_time = self.sim_step_time_us
        check("sim_step_time_us", step_time, 0 <= step_time <= 10_000_000, "must be 0 to 10000000")


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """What the engine tells about itself."""

    log_stats_interval_s: float = 10.0
    """Seconds between log lines with the engine's figures while it works; 0: none."""
    kv_events_buffer: int = 1000
    """Batches of KV events, one a step at most, that are kept for subscribers to replay; 0: KV
    events are not served."""
    kv_cache_metrics: bool = False
    """Follow a sample of the KV blocks, for metrics of how long they live and lie unused."""
    kv_cache_metrics_sample: float = 0.01
    """Share of KV blocks in that sample."""

    def __post_init__(self) -> None:
        sample = self.kv_cache_metrics_sample
        check("kv_cache_metrics_sample", sample, 0 < sample <= 1, "must be in (0, 1]")
        interval = self.log_stats_interval_s
        check("log_stats_interval_s", interval, interval >= 0, "must not be negative")
        batches = self.kv_events_buffer
        check("kv_events_buffer", batches, 0 <= batches <= 1_000_000, "must be 0 to 1000000")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Drafting tokens that one step verifies; the output is the same with and without."""

    speculative_method: Literal["none", "ngram"] = "none"
    """Where drafts come from. `ngram`: what followed the last tokens earlier in the sequence."""
    num_speculative_tokens: int = 5
    """Most drafts of a request in one step; fewer where few were right lately."""
    prompt_lookup_max: int = 5
    """`ngram`: longest run of last tokens that is looked up."""
    prompt_lookup_min: int = 2
    """`ngram`: shortest run of last tokens that is looked up."""

    def __post_init__(self) -> None:
        drafts, shortest = self.num_speculative_tokens, self.prompt_lookup_min
        check("num_speculative_tokens", drafts, 1 <= drafts <= 128, "must be 1 to 128")
        check("prompt_lookup_min", shortest, shortest >= 1, "must be at least 1")
        longest = self.prompt_lookup_max
        rule = f"must be prompt_lookup_min ({shortest}) to 64"
        check("prompt_lookup_max", longest, shortest <= longest <= 64, rule)


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """Outputs that follow a JSON schema, a regular expression, a choice or a grammar."""

    grammar_compile_timeout_s: float = 10.0
    """Longest time until a request's grammar is ready; then the request ends with an error."""
    max_grammar_bytes: int = 262_144
    """Longest schema, expression or grammar of a request, in UTF-8 bytes."""
    grammar_compile_threads: int = 2
    """Grammars that are compiled at once."""
    grammar_cache_size: int = 64
    """Compiled grammars that are kept for later requests with the same one; 0: none."""

    def __post_init__(self) -> None:
        timeout = self.grammar_compile_timeout_s
        check("grammar_compile_timeout_s", timeout, 0 < timeout <= 600, "must be in (0, 600]")
        size = self.max_grammar_bytes
        check("max_grammar_bytes", size, 1 <= size <= 16_777_216, "must be 1 to 16777216")
        threads = self.grammar_compile_threads
        check("grammar_compile_threads", threads, 1 <= threads <= 64, "must be 1 to 64")
        cached = self.grammar_cache_size
        check("grammar_cache_size", cached, 0 <= cached <= 100_000, "must be 0 to 100000")


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """What computes attention over the paged KV cache."""

    attention_backend: Literal["auto", "torch", "xformers", "cpu"] = "auto"
    """`torch`: plain PyTorch operations. `xformers`: its paged kernels; on a CPU only for tests,
    with TRITON_INTERPRET=1 in the worker's environment. `cpu`: kernels in C++ that run a model's
    packed weights, too, of a GGUF file or of 16 bits. `auto`: xformers on CUDA; cpu where it can
    and PyTorch is not as quick, else torch."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All settings of one engine; see the sub-configs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        self._check_prefill_fits()
        self._check_parallel()

    @property
    def served_model_names(self) -> tuple[str, ...]:
        return self.model.served_model_name or (self.model.model,)

    def digest(self) -> str:
        """SHA-256 (hex) over what decides a worker's weights and memory.

        A worker that is initialized again with the same digest keeps its weights.
        """
        parts = {
            name: value
            for name, value in asdict(self).items()
            if name in ("model", "cache", "parallel", "load", "device", "attention")
        }
        parts["max_num_batched_tokens"] = self.scheduler.max_num_batched_tokens
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _check_prefill_fits(self) -> None:
        """Without chunks, one step must take the longest prompt (vLLM V1's rule)."""
        length, tokens = self.model.max_model_len, self.scheduler.max_num_batched_tokens
        if self.scheduler.enable_chunked_prefill or length is None:
            return
        rule = f"must be at least max_model_len ({length}) when chunked prefill is off"
        check("max_num_batched_tokens", tokens, tokens >= length, rule)

    def _check_parallel(self) -> None:
        """Refuse several ranks where nothing splits the model."""
        flags = {
            "--device sim": self.device.device == "sim",
            "--model-impl transformers": self.model.model_impl == "transformers",
        }
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            size = getattr(self.parallel, name)
            for flag, is_set in flags.items():
                check(name, size, size == 1 or not is_set, f"must be 1 with {flag}")
