"""Context parallelism at run time: attention over a process group, and what it takes.

`attention` runs any `Sharding` of `evenstep.plan.sharding`; `latency` predicts how long a kernel
takes for its fragments. Nothing here is imported before it is used, so that predicting needs no
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "evenstep.context_parallel.batch_shards": ("document_lengths", "shard_batch", "unshard"),
    "evenstep.context_parallel.causal_attention": ("attention",),
    "evenstep.context_parallel.prepared_sharding": ("ContextPlan", "prepare"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep.context_parallel' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
