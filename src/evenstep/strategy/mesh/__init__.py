"""Which process of a job needs which data: the trainer's device mesh as a tree of clients.

In reading order:

    axes         the axes PP, DP, CP and TP, their names in frameworks, and coordinates on them;
                 `Buckets`, into which data is divided at an axis; `Delivery`: which client fetches
                 which of them, and which get them by broadcast
    client_tree  `ClientPlaceTree`: the mesh; its buckets, deliveries and changes; read it first
"""

from evenstep.strategy.mesh.axes import AXES, DIVIDING_AXES, STAGES, Buckets, Delivery, Place
from evenstep.strategy.mesh.client_tree import ClientPlaceTree

__all__ = [
    "AXES",
    "DIVIDING_AXES",
    "STAGES",
    "Buckets",
    "ClientPlaceTree",
    "Delivery",
    "Place",
]
