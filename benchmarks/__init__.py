"""Benchmarks: each prints figures of evenstep beside what a user would pick instead.

    planning/   what policies and packers plan, how even, and how fast: no torch, no processes
    loader/     the data loader and training with it, in processes of this machine
    learning/   what the steps of each policy teach: held-out loss on the user's own text
    gpu/        what a GPU says: steps of 8 and 64 ranks, the loader, kernels; updates docs/gpu.md
    trainers/   trainers of other projects, with and without evenstep
    service/    the cluster service: imbalance, memory, planning and throughput
    peers/      evenstep's loader and service beside 13 other data loaders; updates docs/peers.md
    papers/     tables and figures of the papers, beside evenstep's; updates docs/papers.md
    lib/        what they share: real text, rank processes, a training epoch, reports

A file that ends in a call of ``main`` is a benchmark; the others help those beside them. Run one
from the root of the repository, as ``python -m benchmarks.planning.scale``; ``--help`` names
its options, and ``make bench`` runs all.
"""
