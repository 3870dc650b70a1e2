"""What ranks say to each other, over real gloo groups."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from tests.worker_svc.ranks import WAIT_S, joined_ranks
from worker_svc.device import device_id
from worker_svc.layers.parallel import VocabularyShard
from worker_svc.parallel import rendezvous
from worker_svc.parallel.groups import ALONE, MAX_PENDING_SENDS, ParallelGroups
from worker_svc.parallel.layout import RankLayout
from worker_svc.parallel.membership import RankMembership
from worker_svc.parallel.rendezvous import Rendezvous, connect_store, open_store, wait_for_ranks
from worker_svc.parallel.shards import Span


def test_a_sum_does_not_depend_on_the_place_in_the_batch() -> None:
    # In another order of ranks these numbers have another sum.
    parts = [1e8, 1.0, -1e8]
    with joined_ranks(3) as ranks:
        sums = ranks.run(
            lambda rank: ranks.groups[rank].sum(torch.full((5, 4), parts[rank])).unique().tolist()
        )
    assert sums == [[(torch.tensor(1e8) + 1.0 - 1e8).item()]] * 3


def test_columns_are_gathered_in_the_order_of_ranks() -> None:
    with joined_ranks(2) as ranks:
        rows = torch.arange(12.0).view(3, 4)
        gathered = ranks.run(
            lambda rank: ranks.groups[rank].gather_columns(rows[:, 2 * rank : 2 * rank + 2])
        )
    assert all(torch.equal(columns, rows) for columns in gathered)


def test_tokens_are_embedded_by_the_rank_that_has_them() -> None:
    table = torch.randn(7, 3)
    with joined_ranks(2) as ranks:

        def embed(rank: int) -> torch.Tensor:
            shard = VocabularyShard(Span(4 * rank, (4, 3)[rank], 7), ranks.groups[rank])
            weight = torch.zeros(shard.num_rows, 3)
            weight[: (4, 3)[rank]] = table[4 * rank : 4 * rank + 4]
            return shard.embed(torch.tensor([0, 6, 3, 4, 6]), weight)

        embedded = ranks.run(embed)
    assert all(torch.equal(rows, table[[0, 6, 3, 4, 6]]) for rows in embedded)


def test_stages_hand_on_in_order_and_do_not_wait_for_each_other() -> None:
    with joined_ranks(1, 2) as ranks:
        first, last = ranks.groups
        sent = [torch.full((2, 3), float(number)) for number in range(5)]
        ranks.submit(0, lambda: [first.send_hidden(hidden) for hidden in sent]).result(WAIT_S)
        received = ranks.submit(
            1, lambda: [first_of(last.receive_hidden(2, 3, torch.float32)) for _ in sent]
        ).result(WAIT_S)
        assert received == [0.0, 1.0, 2.0, 3.0, 4.0]
        ranks.submit(1, lambda: last.send_tokens(torch.tensor([7, 8]))).result(WAIT_S)
        assert ranks.submit(0, lambda: first.receive_tokens(2).tolist()).result(WAIT_S) == [7, 8]


def test_sends_that_nobody_takes_are_bounded() -> None:
    with joined_ranks(1, 2) as ranks:
        first, last = ranks.groups

        def send_all() -> None:
            for _ in range(MAX_PENDING_SENDS + 1):
                first.send_hidden(torch.zeros(1, 1))

        sending: Future[None] = ranks.submit(0, send_all)
        # It waits for the other side to take one.
        ranks.submit(1, lambda: last.receive_hidden(1, 1, torch.float32)).result(WAIT_S)
        sending.result(WAIT_S)


def test_a_rank_that_leaves_wakes_those_that_wait_for_it() -> None:
    with joined_ranks(2) as ranks:
        waiting = ranks.submit(0, lambda: ranks.groups[0].sum(torch.ones(1, 1)))
        ranks.submit(1, ranks.groups[1].leave).result(WAIT_S)
        with pytest.raises(RuntimeError, match="by peer"):
            waiting.result(WAIT_S)


def test_a_rank_without_a_group_says_so() -> None:
    with pytest.raises(RuntimeError, match="in no group"):
        ParallelGroups(RankLayout(0, 2)).sum(torch.ones(1, 1))
    assert ALONE.num_ranks_here == 1


def test_a_rank_can_rehearse_alone() -> None:
    groups = ParallelGroups(RankLayout(1, 2, 2))
    with groups.rehearsing():
        assert groups.sum(torch.ones(3, 2)).shape == (3, 2)
        assert groups.gather_columns(torch.ones(3, 2)).shape == (3, 4)
        assert groups.receive_hidden(3, 2, torch.bfloat16).shape == (3, 2)
        groups.send_hidden(torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="in no group"):
        groups.send_hidden(torch.ones(3, 2))


def test_ranks_on_loopback_share_their_machine() -> None:
    assert ParallelGroups(RankLayout(0, 2, 2)).num_ranks_here == 4
    assert ParallelGroups(RankLayout(0, 2, 2), "10.0.0.7").num_ranks_here == 1


def test_a_membership_outlives_a_generation() -> None:
    members = [RankMembership(RankLayout(rank, 2), "127.0.0.1") for rank in range(2)]
    keys = set()
    with joined_ranks(2) as ranks:  # for its threads
        for _ in range(2):
            place = ranks.submit(0, members[0].open).result(WAIT_S)
            keys.add(place)
            never = threading.Event()
            ranks.run(lambda rank: members[rank].join(place, never))  # noqa: B023
            groups = [member._groups for member in members]
            sums = ranks.run(lambda rank: groups[rank].sum(torch.ones(1, 1)).item())  # noqa: B023
            assert sums == [2.0, 2.0]
        ranks.run(lambda rank: members[rank].leave())
    assert len(keys) == 2


def test_a_wait_for_ranks_that_do_not_come_can_be_ended() -> None:
    store, _ = open_store("127.0.0.1")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ServiceUnavailableError, match="given up"):
        wait_for_ranks(store, RankLayout(0, 2), cancelled)


def test_a_wait_for_ranks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_TIMEOUT_S", 0.0)
    store, _ = open_store("127.0.0.1")
    with pytest.raises(ServiceUnavailableError, match="some did not come in 0 s"):
        wait_for_ranks(store, RankLayout(0, 2), threading.Event())


@pytest.mark.parametrize(("other", "refused"), [("GPU-1", True), ("GPU-2", False), ("cpu", False)])
def test_ranks_may_not_have_the_same_cuda_device(other: str, refused: bool) -> None:
    store, place = open_store("127.0.0.1")
    never = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(wait_for_ranks, connect_store(place), RankLayout(1, 2), never, other)
        error = None
        try:
            wait_for_ranks(store, RankLayout(0, 2), never, "GPU-1")
        except FailedPreconditionError as caught:
            error = caught
        assert (second.exception(WAIT_S) is not None) == refused
    assert (error is not None and "CUDA_VISIBLE_DEVICES" in error.message) == refused


def test_a_cpu_is_shared_by_ranks() -> None:
    never = threading.Event()
    with joined_ranks(2) as ranks:
        cpu = device_id(torch.device("cpu"))
        store, place = open_store("127.0.0.1")
        stores = [store, connect_store(place)]
        ranks.run(lambda rank: wait_for_ranks(stores[rank], RankLayout(rank, 2), never, cpu))


def test_ranks_of_another_generation_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN_TIMEOUT_S", 0.0)
    store, place = open_store("127.0.0.1")
    stale = connect_store(Rendezvous(place.host, place.port, "another key"))
    stale.set("rank/1", "1")
    with pytest.raises(ServiceUnavailableError):
        wait_for_ranks(store, RankLayout(0, 2), threading.Event())


def test_rank_0_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "CONNECT_TIMEOUT", rendezvous.CONNECT_TIMEOUT / 100)
    store, place = open_store("127.0.0.1")
    del store
    with pytest.raises(ServiceUnavailableError, match="rank 0 cannot be reached"):
        connect_store(place)


@pytest.mark.parametrize("text", ["", "host", "host:1", "host:0/key", "host:x/key", ":1/key", "/"])
def test_a_rendezvous_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="rendezvous must be host:port/key"):
        Rendezvous.parse(text)
    assert Rendezvous.parse("::1:80/key") == Rendezvous("::1", 80, "key")


def first_of(tensor: torch.Tensor) -> float:
    return float(tensor[0, 0])
