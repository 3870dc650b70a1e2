"""How blocks that became findable are told: a run of neighbours at a time."""

import pytest

from scheduler_svc.kv_event_sink import tell_stored


class Sink:
    def __init__(self):
        self.stored = []

    def blocks_stored(self, parent_hash, hashes, token_ids):
        self.stored.append((parent_hash, list(hashes), list(token_ids)))


@pytest.mark.parametrize(
    ("indices", "stored"),
    [
        ([0], [(None, [b"0"], [0, 1])]),
        ([0, 1, 2], [(None, [b"0", b"1", b"2"], [0, 1, 2, 3, 4, 5])]),
        ([1, 3], [(b"0", [b"1"], [2, 3]), (b"2", [b"3"], [6, 7])]),
        ([0, 2, 3], [(None, [b"0"], [0, 1]), (b"1", [b"2", b"3"], [4, 5, 6, 7])]),
    ],
)
def test_neighbours_are_told_together_with_the_block_before_them(indices, stored):
    sink = Sink()
    tell_stored(sink, [b"0", b"1", b"2", b"3"], list(range(9)), indices, 2)
    assert sink.stored == stored
