"""worker_svc: one process a device; loads weights, keeps the KV cache, executes steps."""
