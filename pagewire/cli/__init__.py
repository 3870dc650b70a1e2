"""The command line: `pagewire serve`, `chat`, `complete`, `healthcheck`, and one command a service.

One module a command, imported when it is asked for. It starts services as processes and talks to
them over gRPC; it imports none of them, and no torch.
"""
