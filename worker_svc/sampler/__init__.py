"""Logits to tokens: processors, truncation, the draw, logprobs."""
