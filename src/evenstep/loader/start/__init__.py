"""How batchers are started: by fork, by another method of multiprocessing, or by a fork server.

A trainer without other threads is forked, as torch forks it. A fork copies the locks that other
threads hold at that moment, but not the threads that would release them, so a worker that needs
such a lock hangs. Beside other threads, and where there is an accelerator, batchers and their
workers are therefore forked from a fork server: a separate process that has imported what they need
and runs a single Python thread. It starts with the first loader and imports while the trainer
prepares its model.

multiprocessing has a fork server too, with first batches and memory like those of this one. But it
always imports the main script again, which must then be guarded; it preloads only what is known
before the first loader; and one that is stopped is waited for. This one imports the modules that
each dataset needs, and another way is taken where it cannot serve.

A process that the server starts sees freshly imported modules and a copy of the dataset, where a
fork of the trainer sees both as they are. Where that could make a difference, the trainer is
forked.

    choice          trainer: which way a loader's batchers are started, and the warning
    portable        trainer: the loader's spec as bytes, if a copy is cheap and as good, and what
                    its code reads beside its arguments, for the batcher to compare;
                    `LimitedPickler`, which gives up early, of trainer and batcher
    script          trainer: whether a script may be imported elsewhere
    fork_server     the server: the trainer's handle on it, and its own side
"""
