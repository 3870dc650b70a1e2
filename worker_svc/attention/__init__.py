"""Attention backends: write KV to slots of the paged cache, attend through block tables."""
