"""A gateway of pagewire over its public gRPC API."""

from __future__ import annotations

import time

import grpc

from pagewire.cli.bench.record import BenchRequestError, Job, RequestRecord
from pagewire.client.errors import readable
from pagewire.kit.channels import open_channel
from pagewire.kit.tls import PeerTls
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc


class GrpcTarget:
    """Implements `Target`."""

    def __init__(
        self,
        target: str,
        model: str,
        *,
        ignore_eos: bool,
        api_key: str | None,
        timeout_s: float,
        tls: PeerTls | None = None,
    ) -> None:
        """Prepare; the first request connects.

        Args:
            target: Address of the gateway.
            model: Name that the server gives it; empty: its only one.
            ignore_eos: Ask for all tokens.
            api_key: For `authorization`.
            timeout_s: For a whole request.
            tls: How the connection is secured; None: plain text.

        Raises:
            ValueError: `target` is no address.
        """
        self._channel = open_channel(target, tls=tls)
        self._target = target
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._model = model
        self._ignore_eos = ignore_eos
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._timeout_s = timeout_s

    async def run(self, job: Job, record: RequestRecord) -> None:
        call = self._stub.Generate(
            self._request(job), timeout=self._timeout_s, metadata=self._metadata
        )
        has_usage = False
        try:
            while isinstance(response := await call.read(), inference_pb2.GenerateResponse):
                now_s, event = time.perf_counter(), response.WhichOneof("event")
                if event == "delta":
                    record.arrivals_s.append(now_s)
                    record.num_output_tokens += len(response.delta.token_ids)
                elif event == "usage":
                    has_usage = record.is_counted_by_server = True
                    record.num_prompt_tokens = response.usage.prompt_tokens
                    record.num_output_tokens = response.usage.completion_tokens
                    record.num_cached_tokens = response.usage.cached_tokens
        except grpc.aio.AioRpcError as exc:
            raise BenchRequestError(
                f"{exc.code().name}: {readable(exc, self._target).message}"
            ) from None
        finally:
            call.cancel()
        if not has_usage:
            raise BenchRequestError("the stream ended without usage")

    async def close(self) -> None:
        await self._channel.close()

    def _request(self, job: Job) -> inference_pb2.GenerateRequest:
        request = inference_pb2.GenerateRequest(
            model=self._model,
            sampling=inference_pb2.SamplingOptions(temperature=0),
            stopping=inference_pb2.StoppingOptions(
                max_tokens=job.max_tokens, ignore_eos=self._ignore_eos
            ),
            response=inference_pb2.ResponseOptions(return_token_ids=True),
        )
        if isinstance(job.prompt, str):
            request.text = job.prompt
        else:
            request.token_ids.CopyFrom(common_pb2.TokenIds(ids=job.prompt))
        return request
