import hashlib
import io
import zipfile

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2

from pagewire.kit.errors import FailedPreconditionError, ServiceUnavailableError
from scheduler_svc.vllm_engine import tokenizer_bundle
from scheduler_svc.vllm_engine.tokenizer_bundle import TokenizerBundle, make_archive
from tests.scheduler_svc.vllm_engine.conftest import FILES, FilesTokenizer, running_vllm_stack

NOBODY = "127.0.0.1:1"


async def fetch(*targets, fingerprint=""):
    return [chunk async for chunk in TokenizerBundle(targets).chunks(fingerprint)]


async def test_the_pieces_are_a_zip_of_the_files_and_the_last_has_its_digest():
    async with FilesTokenizer() as tokenizer:
        chunks = await fetch(tokenizer.target)
    archive = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == FILES


async def test_the_next_tokenizer_is_asked_if_one_is_of_no_use():
    async with FilesTokenizer("other") as other, FilesTokenizer() as tokenizer:
        chunks = await fetch(NOBODY, other.target, tokenizer.target)
    assert chunks[-1].sha256


async def test_a_tokenizer_of_another_model_is_not_taken():
    async with FilesTokenizer("other") as other:
        with pytest.raises(FailedPreconditionError, match="another vocabulary"):
            await fetch(other.target)


async def test_a_damaged_file_is_not_passed_on():
    async with FilesTokenizer() as tokenizer:
        tokenizer.digest = "0" * 64
        with pytest.raises(FailedPreconditionError, match=r"tokenizer\.json came damaged"):
            await fetch(tokenizer.target)


async def test_a_tokenizer_that_is_not_there_may_come_later():
    with pytest.raises(ServiceUnavailableError):
        await fetch(NOBODY)


async def test_without_an_address_it_says_what_to_change():
    with pytest.raises(FailedPreconditionError, match="--tokenizers"):
        await fetch()


def test_equal_files_make_equal_archives_whatever_their_order():
    assert make_archive({"a": b"1", "b": b"2"}) == make_archive({"b": b"2", "a": b"1"})


async def test_a_large_archive_comes_in_pieces_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(tokenizer_bundle, "CHUNK_BYTES", 50)
    async with FilesTokenizer() as tokenizer:
        chunks = await fetch(tokenizer.target)
    assert len(chunks) > 2
    assert {len(chunk.data) for chunk in chunks[:-1]} == {50}
    with zipfile.ZipFile(io.BytesIO(b"".join(chunk.data for chunk in chunks))) as opened:
        assert set(opened.namelist()) == set(FILES)


async def test_the_rpc_streams_the_archive():
    async with (
        FilesTokenizer() as tokenizer,
        running_vllm_stack((tokenizer.target,)) as stack,
    ):
        call = stack.vllm.GetTokenizer(common_pb2.GetTokenizerRequest())
        archive = b"".join([chunk.data async for chunk in call])
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert set(opened.namelist()) == set(FILES)


async def test_the_rpc_says_why_there_is_none():
    async with running_vllm_stack() as stack:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stack.vllm.GetTokenizer(common_pb2.GetTokenizerRequest()).read()
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
