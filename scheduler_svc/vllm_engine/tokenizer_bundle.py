"""The model's tokenizer files, fetched from a tokenizer service, as one zip archive.

Fetched anew for each caller: they come once, when they register the engine. The files may be those
that the tokenizer service made of a GGUF file; here they are bytes with names.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Sequence

import grpc
from smg_grpc_proto.generated import common_pb2

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import FailedPreconditionError, PagewireError, ServiceUnavailableError
from pagewire.kit.logs import get_logger
from pagewire.kit.tls import PeerTls
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc

CHUNK_BYTES = 64 * 1024
MAX_BYTES = 200 * 1024 * 1024
"""Of all files together: callers take no more."""
INFO_TIMEOUT_S = 5.0
FILES_TIMEOUT_S = 60.0

_EPOCH = (1980, 1, 1, 0, 0, 0)

log = get_logger("scheduler_svc.vllm_engine.tokenizer_bundle")


class TokenizerBundle:
    """Belongs to one event loop. Makes one archive at a time."""

    def __init__(self, targets: Sequence[str], tls: PeerTls | None = None) -> None:
        self._targets = targets
        self._tls = tls
        self._making = asyncio.Lock()

    async def chunks(self, fingerprint: str) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """The archive in pieces; the last one has its SHA-256.

        Args:
            fingerprint: Of the model's vocabulary.

        Raises:
            PagewireError: No tokenizer of the model's answers.
        """
        async with self._making:
            files = await self._fetch(fingerprint)
            archive = await asyncio.to_thread(make_archive, files)
            digest = await _digest(archive)
        for start in range(0, len(archive), CHUNK_BYTES):
            is_last = start + CHUNK_BYTES >= len(archive)
            yield common_pb2.GetTokenizerChunk(
                data=archive[start : start + CHUNK_BYTES], sha256=digest if is_last else ""
            )

    async def _fetch(self, fingerprint: str) -> dict[str, bytes]:
        if not self._targets:
            raise FailedPreconditionError(
                "the scheduler knows no tokenizer: start it with --tokenizers",
                reason="NO_TOKENIZER",
            )
        error: PagewireError = ServiceUnavailableError(
            "no tokenizer can be reached", reason="NO_TOKENIZER", retry_after_s=1.0
        )
        for target in self._targets:
            try:
                return await fetch_files(target, fingerprint, self._tls)
            except grpc.aio.AioRpcError as problem:
                log.warning("no_tokenizer_files", target=target, reason=problem.code().name)
            except FailedPreconditionError as problem:
                log.warning("no_tokenizer_files", target=target, reason=problem.message)
                error = problem
        raise error


async def fetch_files(
    target: str, fingerprint: str, tls: PeerTls | None = None
) -> dict[str, bytes]:
    """Fetch the files of one tokenizer, if it is the model's.

    Raises:
        FailedPreconditionError: It is another one, or what came is damaged or too large.
        grpc.aio.AioRpcError: The call failed.
    """
    async with open_channel(target, tls=tls) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        info = await stub.GetTokenizerInfo(
            tokenizer_pb2.GetTokenizerInfoRequest(), timeout=INFO_TIMEOUT_S
        )
        if info.fingerprint != fingerprint:
            raise _unusable("the tokenizer has another vocabulary than the model")
        files: dict[str, bytearray] = {}
        num_bytes = 0
        parts = stub.GetTokenizerFiles(
            tokenizer_pb2.GetTokenizerFilesRequest(), timeout=FILES_TIMEOUT_S
        )
        async for part in parts:
            num_bytes += len(part.chunk)
            if num_bytes > MAX_BYTES:
                raise _unusable(f"the tokenizer's files have more than {MAX_BYTES} bytes")
            content = files.setdefault(part.name, bytearray())
            content += part.chunk
            if part.sha256 and await _digest(content) != part.sha256:
                raise _unusable(f"the tokenizer's file {part.name} came damaged")
        return {name: bytes(content) for name, content in files.items()}


def make_archive(files: dict[str, bytes]) -> bytes:
    """Zip the files; equal files make equal archives."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


async def _digest(content: bytes | bytearray) -> str:
    """Return the SHA-256, made beside the event loop, on which the engine's steps run."""
    return await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())


def _unusable(problem: str) -> FailedPreconditionError:
    return FailedPreconditionError(problem, reason="TOKENIZER_UNUSABLE")
