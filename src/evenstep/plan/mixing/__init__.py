"""Mixtures of sources: weights by step, and the draws that follow from them."""

from evenstep.plan.mixing.curriculum import LengthCurriculum
from evenstep.plan.mixing.mixture import Mixture
from evenstep.plan.mixing.record import DrawRecord, redrawn
from evenstep.plan.mixing.schedules import Constant, Live, Past, PerStep, Schedule, Staged, WarmUp

__all__ = [
    "Constant",
    "DrawRecord",
    "LengthCurriculum",
    "Live",
    "Mixture",
    "Past",
    "PerStep",
    "Schedule",
    "Staged",
    "WarmUp",
    "redrawn",
]
