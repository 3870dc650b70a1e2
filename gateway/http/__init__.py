"""The OpenAI-compatible HTTP API. It knows `request_service` and no gRPC."""
