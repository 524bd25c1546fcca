"""Runs in the batcher process, or in threads of the trainer process under ``num_workers=0``.

The batcher buffers the workers' samples, drives the rank protocol, plans and collates. In the order
in which a sample meets them, with the thread that runs each file:

    batcher_handles     trainer: start a batcher, a process or threads, command it, get its results
    process_main        control: what the batcher process does between passes, and until it ends
    batcher_messages    what the trainer passes to it: `LoaderSpec` once, `EpochSpec` in every pass;
                        what the trainer learns with each step, for its checkpoints
    pipeline            one epoch: starts the four threads below and the queues between them
    intake              intake: starts the workers; their chunks, in order and numbered;
                        `IndexFeed`: blocks of dataset indices -> a `ChunkRequest` to a worker
    chunk_checks        intake: a `Chunk` -> `ReadySamples`; all but deliver: `FillerSample`, which
                        zero-loss steps are run with
    sample_store        all threads: samples by arrival number, until they are collated
    round_planner       plan: samples -> messages to and from all ranks -> planned steps
    whole_updates       plan: holds steps back until all of their update are planned
    batch_assembly      collate: a planned step and its samples -> the batch and its `StepInfo`;
                        `GroupCollate`: with images for groups without any
    ports               plan, collate and deliver: pipes and credits between batcher and trainer
"""
