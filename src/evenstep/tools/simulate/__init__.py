"""Policies run offline, over recorded or synthetic lengths, to predict what they gain."""

from evenstep.tools.simulate.distributions import DISTRIBUTIONS, Distribution, sample_lengths
from evenstep.tools.simulate.lengths import load_lengths
from evenstep.tools.simulate.result import SimulationResult
from evenstep.tools.simulate.run import deal, simulate

__all__ = [
    "DISTRIBUTIONS",
    "Distribution",
    "SimulationResult",
    "deal",
    "load_lengths",
    "sample_lengths",
    "simulate",
]
