"""Which process of a job needs which data: the trainer's device mesh as a tree of clients."""

from evenstep.strategy.mesh.axes import AXES, DIVIDING_AXES, Place
from evenstep.strategy.mesh.buckets import Buckets
from evenstep.strategy.mesh.client_tree import ClientPlaceTree
from evenstep.strategy.mesh.delivery import STAGES, Delivery

__all__ = [
    "AXES",
    "DIVIDING_AXES",
    "STAGES",
    "Buckets",
    "ClientPlaceTree",
    "Delivery",
    "Place",
]
