"""Weights from safetensors and GGUF files, streamed into a model's parameters."""
