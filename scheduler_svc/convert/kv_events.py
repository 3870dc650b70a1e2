"""KV events as messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.kv_events import KvEventBatch

# About half a megabyte.
_HASHES_A_MESSAGE = 16384


def kv_event_batch(
    batch: KvEventBatch, block_size: int, *, hashes_only: bool = False
) -> scheduler_pb2.SubscribeKvEventsResponse:
    message = scheduler_pb2.SubscribeKvEventsResponse(
        sequence=batch.sequence,
        removed_hashes=batch.removed_hashes,
        all_cleared=batch.all_cleared,
    )
    for stored in batch.stored:
        message.stored.add(
            parent_hash=stored.parent_hash or b"",
            hashes=stored.hashes,
            token_ids=() if hashes_only else stored.token_ids,
            block_size=block_size,
        )
    return message


def kv_snapshot(
    hashes: Sequence[bytes], through_sequence: int
) -> Iterator[scheduler_pb2.SubscribeKvEventsResponse]:
    """Build the parts of a snapshot, of a bounded size each; at least one."""
    starts = range(0, max(len(hashes), 1), _HASHES_A_MESSAGE)
    for start in starts:
        yield scheduler_pb2.SubscribeKvEventsResponse(
            snapshot=scheduler_pb2.KvSnapshot(
                through_sequence=through_sequence,
                hashes=hashes[start : start + _HASHES_A_MESSAGE],
                is_last=start == starts[-1],
            )
        )


def heartbeat_of_kv_events(number: int) -> scheduler_pb2.SubscribeKvEventsResponse:
    return scheduler_pb2.SubscribeKvEventsResponse(heartbeat=common_pb2.Heartbeat(sequence=number))
