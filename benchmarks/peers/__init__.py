"""pagewire and what people would run instead, measured in turns on one machine.

    python -m benchmarks.peers.environments     # once: what of the peers can be installed
    make bench                                  # ours, and each peer that is there

A round measures every server on every workload, in an order that changes from round to round, each
run behind a probe of the machine's matrix product; figures are medians over rounds, and ratios are
medians of the ratios within a round. All are loaded over HTTP by `pagewire bench serve`, from the
same machine; a library without a server is asked in its own process, which is to its advantage.
Prompts are new random token ids each time, decoding is greedy and runs past end-of-sequence.
"""
