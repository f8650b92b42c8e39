"""Plain torch versions, peers, timing, workloads, plots: what `linattn bench` is made of."""
