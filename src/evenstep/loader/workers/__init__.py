"""Runs in the worker processes: prepares and measures samples, inside an ordinary torch DataLoader.

    worker_start   `WorkerStart`: what a worker does before it prepares samples
    seeding        random state as a function of seed, epoch and sample
    chunks         map-style datasets: `ChunkRequest` -> `RawChunk` -> `Chunk`, measured and packed
    iterable       iterable datasets: chunks in a fixed order, and states to resume workers from
    dataset_state  what a dataset says of its place, as JSON can hold it
    queues         between batcher and workers: a message that is lost ends who lost it

Under ``num_workers=0`` all of it runs in a thread of the trainer process. Two things run in the
batcher: `iterable.WorkerStateLog`, and `seeding` for the collate function.
"""
