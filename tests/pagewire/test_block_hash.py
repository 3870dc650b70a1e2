import hashlib
import struct
import subprocess
import sys

import pytest

from pagewire.block_hash import ROOT_HASH, hash_block, hash_blocks

TOKENS = list(range(16))

# The vectors of docs/design/block-hash.md: they must never change within a version.
FIRST = "f195e08219b3a7e46ecc98cbdb76e52be204fa8af860514c2dc028c395f32f07"
SECOND = "5e856544d37a44b28fb5cecec3e0f07f5052bf2f10c89e826bbb4ea841e60494"
SALTED = "232e95fc9721174d2c98a2088cc90557ddb2d217e47e59d486306d8cff251da1"


def test_the_published_vectors_hold() -> None:
    assert hash_block(None, TOKENS).hex() == FIRST
    assert hash_block(bytes.fromhex(FIRST), range(16, 32)).hex() == SECOND
    assert hash_block(None, TOKENS, ("salt:tenant-1",)).hex() == SALTED


def test_a_first_block_hashes_the_root_the_count_and_the_ids_in_little_endian() -> None:
    expected = hashlib.sha256(
        ROOT_HASH + struct.pack("<I", 16) + struct.pack("<16I", *TOKENS)
    ).digest()
    assert hash_block(None, TOKENS) == expected


def test_extra_keys_are_length_prefixed_so_that_they_cannot_run_together() -> None:
    assert hash_block(None, TOKENS, ("ab", "c")) != hash_block(None, TOKENS, ("a", "bc"))


def test_the_parent_changes_the_hash() -> None:
    parent = hash_block(None, TOKENS)
    assert hash_block(parent, TOKENS) != hash_block(None, TOKENS)


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = "from pagewire.block_hash import hash_block; print(hash_block(None, range(16)).hex())"
    environment = {"PYTHONHASHSEED": "12345"}
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert output.stdout.strip() == hash_block(None, TOKENS).hex()


def test_a_token_id_that_does_not_fit_in_32_bits_is_an_error() -> None:
    with pytest.raises(OverflowError):
        hash_block(None, [2**32])


def test_blocks_in_a_row_are_hashed_as_one_after_another() -> None:
    tokens, start = list(range(70)), hash_block(None, [7] * 16)
    hashes = hash_blocks(start, tokens, 16, ("lora:a",), first_extra_keys=("salt:b",))
    parent, expected = start, []
    for index in range(4):
        keys = ("lora:a", "salt:b") if index == 0 else ("lora:a",)
        parent = hash_block(parent, tokens[16 * index : 16 * (index + 1)], keys)
        expected.append(parent)
    assert hashes == expected
    assert hash_blocks(start, tokens[:15], 16) == []
