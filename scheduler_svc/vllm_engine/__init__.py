"""`vllm.grpc.engine.VllmEngine`, the gRPC service by which the gateway `smg` drives vLLM.

Another front door of the same engine, for one that does text itself: token ids go in and out. The
messages come from the package smg-grpc-proto (`pip install 'pagewire[smg]'`), so nothing may
import this folder but the composition root, and only when it is asked for.
"""
