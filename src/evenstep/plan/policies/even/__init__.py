"""`Even`, the default policy: equal cost on every rank in every step."""

from evenstep.plan.policies.even.even import Even

__all__ = ["Even"]
