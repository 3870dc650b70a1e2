"""Weight-only quantization: linear layers whose weights have 4 or 8 bits in memory."""
