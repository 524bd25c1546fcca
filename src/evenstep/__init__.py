"""evenstep keeps every GPU of a training job equally busy.

    cost/               what policies make equal, and what limits a group
    plan/               which samples form a batch, and which rank gets it: pure functions
    protocol/           what ranks say to each other in a round, without I/O
    mixture/            which source the next sample comes from; for loader and service
    strategy/           what the service's planner decides: mesh, balance, loading plan
    batch/              samples to tensors, and the loss scale
    context_parallel/   a sequence shared by ranks: cut it, attend, hand it over
    data/               sources, wrapped datasets, cached lengths
    loader/             `DataLoader`, in folders by process
    rebalance/          rollouts to ranks and micro-batches, after they are generated
    service/            many sources to the ranks of a mesh
    tools/              simulate, advise, profile, report, doctor
    integrations/       Hugging Face Trainer, Accelerate, Lightning, torchtitan, Megatron-LM
    cli/                the command ``evenstep``, a file for each command

Beside them: `errors`, `testing` (checks for your own code), and
for all folders `arrays`, `files`, `lazy_names`, `processes`, `run_log`, `tested`
(releases of other packages) and `version`.

A folder imports only from those above it: see ``tests/test_house.py``. The public names below are
imported on first use, so that ``import evenstep`` costs nothing. What only some jobs need is
imported from its room: errors from `evenstep.errors`, costs from `evenstep.cost`, formats of packed
rows from `evenstep.batch`, what policies are made of from `evenstep.plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names
from evenstep.version import __version__ as __version__

if TYPE_CHECKING:
    from evenstep.batch import PackCollator as PackCollator
    from evenstep.batch import PadCollator as PadCollator
    from evenstep.batch import PreparingCollator as PreparingCollator
    from evenstep.batch import StepInfo as StepInfo
    from evenstep.batch import pop_step as pop_step
    from evenstep.cost import MeasuredCost as MeasuredCost
    from evenstep.cost import cost_of as cost_of
    from evenstep.data import Mixture as Mixture
    from evenstep.data import SplitDocuments as SplitDocuments
    from evenstep.errors import ConfigurationError as ConfigurationError
    from evenstep.errors import EvenstepError as EvenstepError
    from evenstep.loader import DataLoader as DataLoader
    from evenstep.loader import Faults as Faults
    from evenstep.loader import Memory as Memory
    from evenstep.loader import SampleCounts as SampleCounts
    from evenstep.loader import follow_progress as follow_progress
    from evenstep.loader import merge_states as merge_states
    from evenstep.loader import read_states as read_states
    from evenstep.loader import wrap as wrap
    from evenstep.plan import Even as Even
    from evenstep.plan import FixedBatch as FixedBatch
    from evenstep.plan import PoolSort as PoolSort
    from evenstep.plan import SequencePacking as SequencePacking
    from evenstep.plan import TokenBudget as TokenBudget
    from evenstep.plan import WorkloadPacking as WorkloadPacking

__getattr__, __dir__ = lazy_names(__name__, "__version__")
