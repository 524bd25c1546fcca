"""Which process of a job needs which data: the trainer's device mesh as a tree of clients.

In reading order:

    axes         the axes PP, DP, CP and TP, their names in frameworks, and coordinates on them
    client_tree  `ClientPlaceTree`: the mesh; its buckets, deliveries and changes; read it first
    delivery     `Buckets`, into which data is divided at an axis; `Delivery`: which client fetches
                 which of them, and which get them by broadcast
"""

from evenstep.strategy.mesh.axes import AXES, DIVIDING_AXES, Place
from evenstep.strategy.mesh.client_tree import ClientPlaceTree
from evenstep.strategy.mesh.delivery import STAGES, Buckets, Delivery

__all__ = [
    "AXES",
    "DIVIDING_AXES",
    "STAGES",
    "Buckets",
    "ClientPlaceTree",
    "Delivery",
    "Place",
]
