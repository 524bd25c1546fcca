"""Runs in the batcher process, or in threads of the trainer process under ``num_workers=0``.

The batcher buffers the workers' samples, drives the rank protocol, plans and collates. In the order
in which a sample meets them, with the thread that runs each file:

    thread, process     trainer: start a batcher, command it, get its results
    process_main        control: what the batcher process does between passes, and until it ends
    spec                what the trainer passes to it: `LoaderSpec` once, `EpochSpec` for every pass
    pipeline            one epoch: starts the four threads below and the queues between them
    index_feed          intake: blocks of dataset indices -> a `ChunkRequest` to a worker
    intake              intake: starts the workers; their chunks, in order and numbered
    chunk_checks        intake: a `Chunk` -> `ReadySamples`
    worker_errors       intake: what the dataset raised in a worker, or the worker's death
    sample_store        all threads: samples by arrival number, until they are collated
    sample_bytes        plan: how much memory a sample takes
    round_planner       plan: samples -> messages to and from all ranks -> planned steps
    whole_updates       plan: holds steps back until all of their update are planned
    batch_assembly      collate: a planned step and its samples -> the batch and its `StepInfo`;
                        `GroupCollate`: with images for groups without any
    filler_sample       intake, plan and collate: the sample that zero-loss steps are run with
    progress            deliver: what the trainer learns with each step, for its checkpoints
    ports               plan, collate and deliver: pipes and credits between batcher and trainer
"""
