"""Mixtures of sources: weights by step, and the draws that follow from them."""

from evenstep.strategy.mixture.curriculum import LengthCurriculum
from evenstep.strategy.mixture.mixture import Mixture
from evenstep.strategy.mixture.record import DrawRecord, redrawn
from evenstep.strategy.mixture.schedules import (
    Constant,
    FeedbackSchedule,
    Past,
    PerStep,
    Schedule,
    Staged,
    WarmUp,
)

__all__ = [
    "Constant",
    "DrawRecord",
    "FeedbackSchedule",
    "LengthCurriculum",
    "Mixture",
    "Past",
    "PerStep",
    "Schedule",
    "Staged",
    "WarmUp",
    "redrawn",
]
