"""Messages of `SchedulerService` to and from the engine's own types.

With `worker_messages` and `vllm_engine` the only place that builds or reads protobuf.
"""
