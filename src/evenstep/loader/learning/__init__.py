"""What evenstep learns of a job before it starts, by trying a few of its samples.

    what                        why                                         from
    --------------------------  ------------------------------------------  ----------------------
    whether `collate_fn`        samples have no length before it; groups    8 rows, each alone and
    prepares samples, how it    must be what it makes of them together      all together
    pads, late pixels
    the blank                   every rank runs the vision tower            the same, or a processor
    size of an update           `update_tokens` says how many tokens        256 lengths; 64 of
                                                                            samples it prepares
    whether lengths repeat      a resume makes batches again, or forms      4 of these, twice
                                new ones
    whether ranks begin alike   a streamed dataset is dealt to them         8 rows of each rank
    steps of an epoch           trainers plan learning rates                up to 2,048 lengths
    whether rows are packed     models keep their documents apart, or not   8 rows, and the model

Where: in workers of a process that is made for it, started as batchers are, and ended with its
answer. The user's dataset, sampler and functions in the trainer stay as they were: no file is open,
no number drawn, no lock taken. With ``num_workers=0`` samples are made in the trainer, and so are
these; what is drawn at random is put back.

How ranks agree: the first rank of the loader's group learns, when the first pass begins or a
trainer asks; all others are sent what it found. Only how a streamed dataset begins is read by each.
What was learned of sizes and of that is part of a loader's state, so a resumed job need not find
the same again.

Nothing is tried where nothing depends on it: a loader without `collate_fn` and `update_tokens`
starts its workers at once.

    question        `JobQuestion`: what to ask of a job; the answer, on a few samples; `Learned`:
                    what was found; it makes of a loader's options those of its batcher
    rows            what a collate function makes of a few rows
    probe           `ask`: has a question answered in a process made for it, with a time limit
    job_learning    `JobLearning`: what one loader knows of its job; what the first rank found, on
                    all ranks
"""
