"""One model over several workers: places, process groups, shards, and the way into a group."""
