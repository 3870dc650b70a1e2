"""The simulated worker: real block tables, no tensors, tokens that are a hash of what it read."""
