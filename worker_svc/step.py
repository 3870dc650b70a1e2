"""What crosses between the worker's service side and its tensor side: plain records of a step.

Owns the records of a step, of a loaded model, and the `Runner` protocol that the model runner and
the simulated runner implement. Knows neither protobuf nor torch: `convert.py` builds these records
from frames, a runner on its own thread consumes them. Columns lie side by side as in the frames;
grammar masks, which come in a frame of their own, are in `grammar_masks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from worker_svc.grammar_masks import MaskSource, no_masks

if TYPE_CHECKING:
    from pagewire.sampling_params import SamplingParams
    from worker_svc.kv_cache_groups import KvCacheGroup

ProgressCallback = Callable[[str, float], None]
"""Called on the runner's thread with (phase, fraction in [0, 1]); phases: `load_weights`, ..."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the runner does not know: a first admission, or a resumption after preemption.

    A resumed request carries its earlier outputs in `output_token_ids`; draws, penalties and
    `min_tokens` go on from their count.
    """

    handle: int
    """Small integer that names the request in later steps of this stream."""
    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    sampling: SamplingParams
    num_computed_tokens: int
    """Tokens whose KV is already in `block_ids` (a prefix cache hit)."""
    block_ids: Sequence[int]
    """Its block table; with several KV cache groups one after another. Block 0 stands where a
    sliding window has no block any more."""
    block_counts: Sequence[int] = ()
    """How many of `block_ids` each group has; empty: one group."""
    traceparent: str = ""
    """W3C trace context; empty: none."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step, as the scheduler decided it. `handles` and its columns are parallel.

    Finished and preempted handles are dropped before new requests are added; a handle may be
    preempted in one step and come back as a `NewRequest` in a later one, or in the same one.
    """

    step: int
    new_requests: Sequence[NewRequest] = ()
    handles: Sequence[int] = ()
    """Every scheduled request, new ones included, each once."""
    num_scheduled_tokens: Sequence[int] = ()
    """One for each of `handles`, at least 1."""
    new_block_counts: Sequence[int] = ()
    """One for each of `handles`: how many of `new_block_ids` are appended to its block table; 0 for
    a new request, whose blocks are in its `NewRequest`. Empty means all 0. With several KV cache
    groups one for each group of each handle."""
    new_block_ids: Sequence[int] = ()
    """Flat, in the order of `handles`."""
    finished_handles: Sequence[int] = ()
    preempted_handles: Sequence[int] = ()
    draft_counts: Sequence[int] = ()
    """One for each of `handles`: how many of its scheduled tokens, the last ones, are drafts to
    verify. A row with drafts computes all its known tokens. Empty means all 0."""
    draft_token_ids: Sequence[int] = ()
    """Flat, in the order of `handles`."""
    masked_handles: Sequence[int] = ()
    """Those of `handles` whose tokens a grammar mask restricts."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens)

    def drafts(self) -> dict[int, Sequence[int]]:
        """Draft token ids by handle, of the rows that have any."""
        drafts, start = {}, 0
        for handle, count in zip(self.handles, self.draft_counts, strict=False):
            if count:
                drafts[handle] = self.draft_token_ids[start : start + count]
                start += count
        return drafts


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why a row gets no token."""

    reason: str
    """Machine-readable: upper snake case, for ErrorInfo."""
    message: str
    """For people; clients see it."""


NAN_LOGITS = RowFailure(
    "NAN_LOGITS", "the model computed no valid numbers for the next token of this request"
)
EMPTY_MASK = RowFailure(
    "EMPTY_MASK",
    "no token may be drawn: structured_outputs (its grammar), allowed_token_ids, bad_words, "
    "logit_bias and min_tokens (with the stop tokens) together forbid every token",
)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A request that cannot go on; each later step that schedules it fails it again."""

    handle: int
    failure: RowFailure


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """Log-probabilities of tokens, sampled ones or those of a prompt.

    A token's entries in the flat columns are itself first and then the top k in falling order, or
    the ids that its request names (it may be among them again).
    """

    counts: Sequence[int]
    """Entries of each token; 0 when its request asked for none."""
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    sampled_ranks: Sequence[int]
    """Parallel to `counts`: rank of the token in the vocabulary, 1 is the likeliest; 0 when its
    request asked for no logprobs."""


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Where the time of a step went, in nanoseconds of a monotonic clock.

    A CUDA device computes while the host goes on: there forward_ns is the time to queue the work,
    and the wait for it is in sample_ns.
    """

    prepare_ns: int = 0
    """Updating request state and building the input tensors."""
    forward_ns: int = 0
    sample_ns: int = 0
    """With the wait for grammar masks."""
    total_ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """What a step gave. `handles` is the step's own order; every scheduled handle is in it."""

    step: int
    handles: Sequence[int]
    num_sampled: Sequence[int]
    """One for each of `handles`: 0 while its prefill is not complete, and where a masked row has no
    mask; 1, and 1 more for each accepted draft. A failed row has those before its failure."""
    sampled_token_ids: Sequence[int]
    """Flat, in the order of `handles`."""
    failed: Sequence[FailedRow] = ()
    logprobs: LogprobColumns | None = None
    """`counts` is parallel to `sampled_token_ids`; None: no request asked for any."""
    prompt_logprobs: Mapping[int, LogprobColumns] = field(default_factory=dict)
    """By handle, of requests that asked for them and got their first token: `counts` has an entry
    for each prompt token but the first."""
    timings: StepTimings = field(default_factory=StepTimings)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is, for the scheduler's sizing and the gateway's checks."""

    architecture: str
    vocab_size: int
    max_model_len: int
    """The model's own limit on positions, or the configured one where that is smaller."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    dtype: str
    """`float32` or `bfloat16`: what `auto` became."""
    attention_backend: str
    """What computes attention: what `auto` became."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    weights_digest: str
    """Hex digest over the weights' identity; part of the engine fingerprint."""
    device: str = "cpu"
    """Kind of device: what `auto` became."""
    weight_bytes: int = 0
    """What the weights take on the device; 0 where there are none."""
    default_sampling: Mapping[str, float | int] = field(default_factory=dict)
    """Sampling defaults that the model's publisher recommends, by SamplingParams field name."""
    kv_cache_groups: Sequence[KvCacheGroup] = ()
    """Layers with block tables of their own; empty: one table for all, whatever their windows."""

    @property
    def num_kv_cache_groups(self) -> int:
        return len(self.kv_cache_groups) or 1


class Runner(Protocol):
    """The device side of a worker. Every method blocks and is called from one thread."""

    def load(self, progress: ProgressCallback) -> ModelInfo:
        """Loads weights. Raises `PagewireError` or `ValueError` that says what to change."""

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one KV block over all layers of the largest group, K and V. Needs `load`."""

    def available_kv_bytes(self) -> int:
        """Bytes that may go to the KV cache, after weights and activations of a largest step."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Allocates the KV cache; block 0 is the null block. Calling again replaces the cache."""

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        """Runs one step. A bad row fails alone; an exception means that the whole step failed.

        Args:
            scheduler_output: The step.
            masks: Waits for the step's grammar masks; called after the forward pass, and only if
                a masked row samples.
        """

    def reset(self) -> None:
        """Drops the KV cache and all requests and keeps the weights. Idempotent.

        Where graphs were recorded it keeps the cache's memory, for an `allocate_kv_cache` of the
        same size.
        """

    def sleep(self, level: int) -> None:
        """Drops the KV cache and all requests, and frees the device of weights.

        Args:
            level: 1: weights go to host memory. 2: they are dropped.
        """

    def wake_weights(self, progress: ProgressCallback) -> ModelInfo:
        """Has the weights back on the device after `sleep`; raises as `load` does."""
