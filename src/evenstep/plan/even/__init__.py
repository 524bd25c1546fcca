"""`Even`, the default policy: equal cost on every rank in every step."""

from evenstep.plan.even.even import Even

__all__ = ["Even"]
