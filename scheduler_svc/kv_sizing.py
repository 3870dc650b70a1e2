"""How many KV blocks an engine has, and the longest sequence that they hold.

Pure arithmetic over the configuration and what the worker found, with vLLM's rules and errors. A
block serves any group of layers, so it has the bytes that the largest group needs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
from scheduler_svc.executor import KvCachePlan, WorkerFacts
from scheduler_svc.kv_cache_groups import max_held_blocks, max_step_tokens

_GIB = 1024**3


def plan_kv_cache(config: EngineConfig, facts: WorkerFacts) -> KvCachePlan:
    """Decide the number of blocks and the length limit.

    Raises:
        InvalidRequestError: --max-model-len is longer than the model allows.
        FailedPreconditionError: One request of full length does not fit.
    """
    max_model_len = _max_model_len(config, facts)
    block_size = config.cache.block_size
    num_blocks = config.cache.num_gpu_blocks_override
    if num_blocks is None:
        num_blocks = facts.available_kv_cache_bytes // max(facts.bytes_per_block, 1)
    if num_blocks < 2:
        raise FailedPreconditionError(
            "No available memory for the cache blocks: the worker found"
            f" {_gib(facts.available_kv_cache_bytes)} for KV, two blocks need"
            f" {_gib(2 * facts.bytes_per_block)}. Try increasing --kv-cache-memory-bytes or"
            " --num-gpu-blocks-override when initializing the engine.",
            reason="NO_KV_CACHE_MEMORY",
        )
    # One block is null, so a request can hold all but one.
    if _num_blocks_for(max_model_len, config, facts) > num_blocks - 1:
        raise _too_small(max_model_len, num_blocks, config, facts)
    return KvCachePlan(num_blocks, block_size, max_model_len, len(facts.kv_cache_groups))


def describe_kv_cache(
    config: EngineConfig, facts: WorkerFacts, plan: KvCachePlan
) -> dict[str, str]:
    """Return the cache's settings and sizes by name, as text; what is not set is `None`.

    `kv_cache_max_concurrency` is how many requests of full length fit at a time,
    `kv_cache_size_tokens` their tokens: with sliding windows more than blocks times block size.
    """
    longest = _num_blocks_for(plan.max_model_len, config, facts)
    concurrency = (plan.num_blocks - 1) / longest
    values = {
        **asdict(config.cache),
        "block_size": plan.block_size,
        "num_gpu_blocks": plan.num_blocks,
        "kv_cache_size_tokens": int(concurrency * plan.max_model_len),
        "kv_cache_max_concurrency": round(concurrency, 4),
    }
    return {name: str(value) for name, value in values.items()}


def _max_model_len(config: EngineConfig, facts: WorkerFacts) -> int:
    wanted, longest = config.model.max_model_len, facts.max_position_embeddings
    if wanted is None:
        return longest
    if wanted > longest:
        raise InvalidRequestError(
            f"--max-model-len {wanted} is longer than the model was made for ({longest});"
            f" choose at most {longest}",
            reason="MAX_MODEL_LEN_TOO_LONG",
            field="max_model_len",
        )
    return wanted


def _too_small(
    max_model_len: int, num_blocks: int, config: EngineConfig, facts: WorkerFacts
) -> FailedPreconditionError:
    block_size = config.cache.block_size
    needed_bytes = (_num_blocks_for(max_model_len, config, facts) + 1) * facts.bytes_per_block
    available_bytes = num_blocks * facts.bytes_per_block
    return FailedPreconditionError(
        f"To serve at least one request with the model's max seq len ({max_model_len}),"
        f" {_gib(needed_bytes)} KV cache is needed, which is larger than the available KV cache"
        f" memory ({_gib(available_bytes)}, {num_blocks} blocks of {block_size} tokens). Based on"
        " the available memory, the estimated maximum model length is"
        f" {_longest_that_fits(num_blocks - 1, max_model_len, config, facts)}. Try increasing"
        " --kv-cache-memory-bytes or --num-gpu-blocks-override, or decreasing --max-model-len"
        " when initializing the engine.",
        reason="KV_CACHE_TOO_SMALL",
    )


def _num_blocks_for(num_tokens: int, config: EngineConfig, facts: WorkerFacts) -> int:
    """Blocks that one request of this length holds at most at a time, over all groups."""
    step_tokens = max_step_tokens(
        config.scheduler.max_num_batched_tokens, config.scheduler.long_prefill_token_threshold
    )
    block_size = config.cache.block_size
    return max_held_blocks(facts.kv_cache_groups, num_tokens, block_size, step_tokens)


def _longest_that_fits(
    num_usable_blocks: int, max_model_len: int, config: EngineConfig, facts: WorkerFacts
) -> int:
    """The longest request that fits, 0 if none does; `max_model_len` does not."""
    lengths = range(1, max_model_len)
    return bisect_right(
        lengths, num_usable_blocks, key=lambda length: _num_blocks_for(length, config, facts)
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
