"""The scheduler's core under a virtual clock: what an engine would do with a workload.

`python -m scheduler_svc.simulate --help`. Decisions are the live engine's, because the core is the
same; only the worker is replaced by a model of a step's time. No service starts, no clock is read.
"""
