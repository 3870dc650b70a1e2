"""Where the time of one request went: its parts, box by box, for as long as they are kept.

`request_trace` follows a request through the gateway, `output_trace` each of its outputs through
an engine with the help of that engine's `step_ledger`; `recorder` ends, keeps and logs them.
Nothing here knows HTTP, gRPC or the parts of the gateway that call it.
"""
