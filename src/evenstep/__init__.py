"""evenstep keeps every GPU of a training job equally busy.

The public names. Each is imported on first use, so that ``import evenstep`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenstep.version import __version__

if TYPE_CHECKING:
    from evenstep.batch import PackCollator as PackCollator
    from evenstep.batch import PadCollator as PadCollator
    from evenstep.batch import StepInfo as StepInfo
    from evenstep.batch import pop_step as pop_step
    from evenstep.cost import FittedCost as FittedCost
    from evenstep.cost import MemoryLimit as MemoryLimit
    from evenstep.cost import PaddedTokenCost as PaddedTokenCost
    from evenstep.cost import TokenCost as TokenCost
    from evenstep.cost import TransformerCost as TransformerCost
    from evenstep.errors import CollateError as CollateError
    from evenstep.errors import ConfigurationError as ConfigurationError
    from evenstep.errors import EvenstepError as EvenstepError
    from evenstep.errors import LoaderDiedError as LoaderDiedError
    from evenstep.errors import MismatchError as MismatchError
    from evenstep.errors import PeerError as PeerError
    from evenstep.errors import SampleError as SampleError
    from evenstep.loader import DataLoader as DataLoader
    from evenstep.loader import merge_states as merge_states
    from evenstep.loader import read_states as read_states
    from evenstep.loader import wrap as wrap
    from evenstep.plan import Even as Even
    from evenstep.plan import FixedBatch as FixedBatch
    from evenstep.plan import Policy as Policy
    from evenstep.plan import TokenBudget as TokenBudget

_HOMES = {
    "evenstep.batch": ("PackCollator", "PadCollator", "StepInfo", "pop_step"),
    "evenstep.cost": (
        "FittedCost",
        "MemoryLimit",
        "PaddedTokenCost",
        "TokenCost",
        "TransformerCost",
    ),
    "evenstep.errors": (
        "CollateError",
        "ConfigurationError",
        "EvenstepError",
        "LoaderDiedError",
        "MismatchError",
        "PeerError",
        "SampleError",
    ),
    "evenstep.loader": ("DataLoader", "merge_states", "read_states", "wrap"),
    "evenstep.plan": ("Even", "FixedBatch", "Policy", "TokenBudget"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
