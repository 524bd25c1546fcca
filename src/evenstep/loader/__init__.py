"""The drop-in DataLoader.

    sampler ─▶ feeder thread ─┐                              trainer process
    trainer ◀─ StepIterator ◀─┼─ exchange thread ◀─ Gloo ─▶ other ranks
    ──────────────────────────┼───────────────────────────────────────────
                              └▶ batcher process: buffer, protocol, plan, collate
                                    ▲ chunks of samples
                                 worker processes: a plain torch DataLoader

Bulk data moves through recycled shared memory (`arena`), decisions through small messages.
"""

from evenstep.loader.dataloader import DataLoader
from evenstep.loader.iterator import StepIterator
from evenstep.loader.resume.dcp_states import read_states
from evenstep.loader.resume.state import merge_states
from evenstep.loader.torch_loader import wrap

__all__ = ["DataLoader", "StepIterator", "merge_states", "read_states", "wrap"]
