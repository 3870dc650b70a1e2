"""The scheduler service: continuous batching, block tables, prefix cache and recovery.

`scheduler`, `request`, `request_queue`, `admission`, `kv_cache_manager`, `block_pool`, `output`,
`stop` and `limits` are the sans-IO core; `engine_core` runs it; the rest speaks gRPC.
"""
