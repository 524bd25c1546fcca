"""Which process of a job needs which data: the trainer's device mesh as a tree of clients."""

from evenstep.topology.delivery import STAGES, Delivery
from evenstep.topology.places import AXES, DIVIDING_AXES, Place
from evenstep.topology.subgroups import Subgroups
from evenstep.topology.tree import ClientPlaceTree

__all__ = [
    "AXES",
    "DIVIDING_AXES",
    "STAGES",
    "ClientPlaceTree",
    "Delivery",
    "Place",
    "Subgroups",
]
