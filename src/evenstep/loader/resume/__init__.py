"""Runs in the trainer process: which samples come in which order, and where a pass resumes.

    sample_order     a rank's share of an epoch in order: `evenstep.plan.epoch` computes it,
                     for the rest of an epoch on another number of ranks too
    epochs           `Epochs`: every epoch, as the loader's arguments define it; how many steps it
                     has, or probably has
    epoch_progress   `EpochProgress`: where the trainer is in an epoch
    epoch_cursor     `EpochCursor`: moves that progress on, from step to step and pass to pass;
                     `EpochStart`: where a pass begins, for its batcher and its feeder
    state            progress -> a saved state, and back, on any number of ranks; states out of a
                     checkpoint of ``torch.distributed.checkpoint``
    resumption       `Resumption`: a saved state, once it is found to fit the loader
    state_schema     the types of a saved state's values

Needs no process group; `merge_states` and `read_states` run wherever a checkpoint is converted.
"""
