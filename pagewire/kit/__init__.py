"""Plumbing that every service shares: configuration, logs, channels, servers, errors, heartbeats.

No domain logic lives here, and nothing of pagewire is imported but the generated stubs of
`pagewire.v1`. The services and the command line call it; it calls none of them.
"""

import os

# gRPC's core writes lines of its own, in its own format, to stderr unless it is told before it is
# first imported. What they say reaches our logs as statuses and exceptions.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
