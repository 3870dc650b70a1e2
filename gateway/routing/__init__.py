"""Which replica a request goes to: load, cached prefixes, failures, and who is there at all.

`policies`, `prefix_index`, `prefix_match`, `replica_load`, `circuit_breaker` and `membership` are
sans-IO; `followers` feeds them from a scheduler's streams, `replica` holds those of one scheduler.
docs/design/routing.md has the rules with their numbers.
"""
