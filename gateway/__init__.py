"""The gateway: talks to clients over HTTP and gRPC, and to schedulers and tokenizers for them.

It owns API shapes, limits, seeds, usage and each live request's tokens; it does no scheduling and
knows no model and no text rules.
"""
