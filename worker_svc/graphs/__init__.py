"""Steps of single tokens, recorded once for each size and replayed (docs/design/graphs.md)."""
