"""`pagewire bench serve`: load for a server, and what its clients saw of it.

`workload` and `trace` say what is asked and when, `driver` asks it, `openai_target` and
`grpc_target` speak to servers, `figures` makes numbers of the records, `report` shows them.
"""
