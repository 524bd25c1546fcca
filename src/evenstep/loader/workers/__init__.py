"""Runs in the worker processes: prepares and measures samples, inside an ordinary torch DataLoader.

    worker_start   what a worker does first; queues between batcher and workers; what the dataset
                   raised in a worker, or the worker's death; random state as a function of seed,
                   epoch and sample
    chunks         map-style datasets: `ChunkRequest` -> `RawChunk` -> `Chunk`, measured and packed
    iterable       iterable datasets: chunks in a fixed order, and states to resume workers from

Under ``num_workers=0`` all of it runs in a thread of the trainer process. Two things run in the
batcher: `iterable.WorkerStateLog`, and `seed_everything` for the collate function.
"""
