"""Which process of a job needs which data: the trainer's device mesh as a tree of clients.

In reading order:

    axes         the axes PP, DP, CP and TP, their names in frameworks, and coordinates on them
    client_tree  `ClientPlaceTree`: the mesh; its buckets, deliveries and changes; read it first
    buckets      `Buckets`: the parts into which data is divided at an axis
    delivery     `Delivery`: which client fetches which buckets, which get them by broadcast
    text_tree    the tree as lines of text
"""

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
