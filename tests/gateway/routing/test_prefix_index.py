"""The index claims what the replica holds, and nothing else, whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefix_index import PrefixIndex
from gateway.streams import StreamLostError

hashes = st.integers(0, 30).map(lambda number: bytes([number]) * 32)
batches = st.lists(
    st.tuples(st.booleans(), st.lists(hashes, max_size=4), st.lists(hashes, max_size=8)),
    max_size=20,
)


def current(max_hashes=1000, snapshot=()):
    index = PrefixIndex(4, max_hashes)
    index.take_snapshot(snapshot, 0, True)
    return index


def known(index):
    return {bytes([n]) * 32 for n in range(31) if bytes([n]) * 32 in index}


@given(snapshot=st.sets(hashes), steps=batches, max_hashes=st.integers(1, 40))
def test_it_is_the_replicas_cache_or_a_part_of_it_when_full(snapshot, steps, max_hashes):
    index, truth = current(max_hashes, snapshot), set(snapshot)
    for sequence, (all_cleared, removed, stored) in enumerate(steps, 1):
        index.apply(sequence, all_cleared, removed, stored)
        truth = ((set() if all_cleared else truth) - set(removed)) | set(stored)
        assert known(index) <= truth
        assert len(index) <= max_hashes
        assert index.is_full or known(index) == truth
    assert index.next_sequence == len(steps) + 1


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_gap_voids_all(sequence):
    index = current(snapshot=[bytes(32)])
    index.apply(1, False, [], [b"1" * 32])
    with pytest.raises(StreamLostError):
        index.apply(sequence, False, [], [])
    assert (len(index), index.is_current, index.next_sequence) == (0, False, 0)


def test_it_answers_only_when_the_snapshot_is_complete():
    index = PrefixIndex(4)
    index.take_snapshot([bytes(32)], 7, False)
    assert not index.is_current
    index.take_snapshot([b"1" * 32], 7, True)
    assert (index.is_current, index.next_sequence, len(index)) == (True, 8, 2)


def test_what_is_known_counts_again_when_it_is_followed_again():
    index = current(snapshot=[bytes(32)])
    index.pause()
    assert not index.is_current
    index.resume()
    assert index.is_current and bytes(32) in index


def test_nothing_known_is_not_current_when_followed():
    index = PrefixIndex(4)
    index.resume()
    assert not index.is_current
