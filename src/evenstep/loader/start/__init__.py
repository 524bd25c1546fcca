"""How batchers are started: by fork, by another method of multiprocessing, or by a fork server.

A fork copies the locks that other threads hold at that moment, and no thread that would release
them: a worker that needs one waits for ever. So batchers, and with them workers, are by default
forked from a fork server, a process of its own that has imported what they need and runs no other
Python thread. It starts when the first loader is made, while the trainer prepares its model.

What a server starts sees a fresh import of the modules and a copy of the dataset, where a fork sees
everything as it is. So the trainer is forked instead wherever that could make a difference.

    choice          trainer: which way a loader's batchers are started, and the warning
    portable        trainer: the loader's spec as bytes, if a copy is cheap and as good
    limited_pickle  trainer and batcher: pickle that gives up early
    globals_read    trainer and batcher: what code reads beside its arguments, to compare
    fork_server     trainer: the server, and the processes that it started
    served          server: imports, forks, reports exit codes; batcher: unpacks the spec
"""
