"""The drop-in DataLoader, in folders by process.

Each rank of a job runs these processes; with ``num_workers=0`` the batcher and the workers are
threads of the trainer process.

    this folder,    trainer process
    resume/             sampler           other ranks         training loop
                           │                   ▲ Gloo               ▲
                        feeder          exchange thread       StepIterator
                           │ indices           │ messages           │ batches
    batcher/        ───────▼───────────────────▼────────────────────┴──────
                    batcher process: store, protocol, plan, collate
                           │ indices           ▲ chunks of samples
    workers/        ───────▼───────────────────┴───────────────────────────
                    worker processes: prepare and measure samples, in a plain torch DataLoader

Samples and batches travel through recycled shared memory, decisions as small messages in pipes.
All three processes use transport/, where these and the exchange thread are.
learning/ finds out what the job is like before its first pass, in a process made for it. resume/
has the order of samples, and states; `resume/state_schema` lists all that a saved state has.

A rank that is killed is noticed by `transport/lifelines`, a batcher by `batcher/batcher_handles`,
and a worker by the batcher, see `workers/worker_start`.

The files of this folder, in reading order:

    dataloader     `DataLoader`: arguments, `steps`, `state_dict`, `close`
    attributes     `LoaderAttributes`: its arguments as attributes
    arguments      what it refuses, trainers without evenstep's integration too; its defaults
    options        `LoaderOptions`: its arguments, checked; `Memory`, `Faults`, `SampleCounts`
    runtime        `LoaderRuntime`: the exchange thread, and the batcher and feeder of each pass;
                   `Feeder`: the sampler's indices
    iterator       `StepIterator`: one pass
    step_clock     how long steps take, and what that says of the policy's cost
    own_time       how long this rank itself takes, before it waits for the others
    notices        what a loader says about its pass
    memory_watch   what fits in memory, found while training
    start          how batchers, and processes that answer questions, are started
    threads        `GuardedThread`: a thread that never ends in silence
    torch_loader   `wrap`: takes over a torch DataLoader
    schedule       `follow_progress`: learning rates by the share of training that is done
    row_order      what its samplers and batch samplers yield, and whether for all ranks or for one
"""

from evenstep.loader.dataloader import DataLoader
from evenstep.loader.options import Faults, Memory, SampleCounts
from evenstep.loader.resume.state import merge_states, read_states
from evenstep.loader.schedule import follow_progress
from evenstep.loader.torch_loader import wrap

__all__ = [
    "DataLoader",
    "Faults",
    "Memory",
    "SampleCounts",
    "follow_progress",
    "merge_states",
    "read_states",
    "wrap",
]
