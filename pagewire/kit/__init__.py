"""Plumbing that every service shares: configuration, logs, channels, servers, errors, heartbeats.

No domain logic lives here, and nothing of pagewire is imported but the generated stubs of
`pagewire.v1`. The services and the command line call it; it calls none of them.
"""
