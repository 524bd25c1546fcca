"""Adapters: a module for each peer. It has a function for each workload that the peer can do.

    padded, images, mixture    take a `Work`, return the loader of this rank: an iterable of
                               batches, as `work.pad` and `work.stack` make them
    convert     writes the raw data in the peer's own format; without it the peer reads the raw data
    STATE       methods of the loader: for what to save of it in mid-epoch, and to take that again
    close       what a trainer would call at the end

A workload that the peer has no means for is left out.
"""
