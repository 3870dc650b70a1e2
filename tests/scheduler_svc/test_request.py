import pytest

from pagewire.block_hash import hash_block
from scheduler_svc.request import Request, RequestStatus
from tests.scheduler_svc.factories import make_core_request, make_limits, make_request


def test_only_full_blocks_are_hashed():
    request = make_request(range(10))
    first = hash_block(None, range(4))
    assert request.block_hashes == [first, hash_block(first, range(4, 8))]


def test_generated_tokens_are_hashed_as_they_fill_blocks():
    request = make_request(range(7))
    request.append_output_token(7)
    assert request.block_hashes == make_request(range(8)).block_hashes


def test_a_resumed_request_hashes_prompt_and_output_alike():
    resumed = make_request(range(6), output_token_ids=[6, 7], is_resumed=True)
    assert resumed.block_hashes == make_request(range(8)).block_hashes


def test_a_salt_changes_every_hash_through_the_first():
    plain, salted = make_request(range(8)), make_request(range(8), cache_salt="a")
    assert salted.block_hashes[0] == hash_block(None, range(4), ("salt:a",))
    assert salted.block_hashes[1] == hash_block(salted.block_hashes[0], range(4, 8))
    assert not set(plain.block_hashes) & set(salted.block_hashes)


def test_an_adapter_is_in_every_hash():
    request = make_request(range(8), lora_digest="d")
    assert request.block_hashes[1] == hash_block(request.block_hashes[0], range(4, 8), ("lora:d",))


def test_nothing_is_hashed_without_prefix_caching():
    limits = make_limits(enable_prefix_caching=False)
    request = Request(make_core_request(range(8)), limits, 0.0)
    request.append_output_token(1)
    assert request.block_hashes == []


def test_output_is_apart_from_the_prompt():
    request = make_request([1, 2], output_token_ids=[3], is_resumed=True)
    request.append_output_token(4)
    assert (request.num_prompt_tokens, request.output_token_ids) == (2, [3, 4])


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(None, 256), (8, 18), (1000, 256)], ids=["none", "few", "many"]
)
def test_the_length_limit_is_max_tokens_or_the_context(max_tokens, expected):
    assert make_request(10, max_tokens=max_tokens).stop_rules.max_total_tokens == expected


def test_ignore_eos_leaves_no_end_of_sequence_token():
    assert make_request(ignore_eos=True).stop_rules.eos_token_ids == frozenset()


def test_only_finished_states_are_final():
    final = {status for status in RequestStatus if status.is_finished}
    assert final == {
        RequestStatus.FINISHED_STOPPED,
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_ABORTED,
        RequestStatus.FINISHED_ERROR,
    }
