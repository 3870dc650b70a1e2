"""The public protobuf contract to and from the gateway's own types; nothing else reads it.

`requests` and `conversation` read what clients send, `events` and `logprobs` write what a
generation gives; `chat` and `batch` are what is particular to Chat and GenerateBatch. Clients of
other services (`engine_stream`, `tokenizer_client`, ...) build their own messages.
"""
