"""The paper's two strategies in primitives: Algorithms 1 and 2."""

from __future__ import annotations

from evenstep.arrays import Int64Array
from evenstep.strategy.balance.methods import bins_by
from evenstep.strategy.graph import DGraph
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.sample_costs import CostFunction, sample_costs


def llm_balance(graph: DGraph, cost: CostFunction, *modality: str, axis: str = "DP") -> LoadingPlan:
    """Algorithm 1: micro-batches by greedy bin packing, assigned to the buckets at `axis` in turn,
    costliest first.

    Args:
        graph: with the samples of the step.
        cost: of a sample, by its tokens.
        modality: modalities that the model processes; "text" by default.
        axis: at which samples are distributed.
    """
    graph = graph.modality(*modality or ("text",))
    graph = graph.distribute(axis).cost(cost)
    graph = graph.balance("greedy", level="intra")
    graph = graph.balance("round_robin", level="inter")
    return graph.plan()


def vlm_balance(
    graph: DGraph, backbone_cost: CostFunction, encoder_cost: CostFunction
) -> LoadingPlan:
    """Algorithm 2: for the encoder, images by greedy bin packing over all clients; for the
    backbone, image and text tokens together as in Algorithm 1.

    The images of one sample stay together, since metadata has one length per modality; for single
    images see `image_balance`.
    """
    encoder = graph.modality("image").distribute("WORLD").cost(encoder_cost)
    encoder = encoder.balance("greedy", level="intra")
    backbone = graph.modality("text", "image").distribute("DP").cost(backbone_cost)
    backbone = backbone.balance("greedy", level="intra")
    backbone = backbone.balance("round_robin", level="inter")
    return backbone.plan(subplans={"encoder": encoder})


def image_balance(lengths: Int64Array, clients: int, cost: CostFunction) -> Int64Array:
    """Algorithm 2's plan of the encoder to the letter, in which the images of a sample may go to
    different clients. For a trainer that exchanges images itself: the service delivers those of a
    sample together.

    Args:
        lengths: [images] patches of each image of the step, each positive.
        clients: ranks that encode.
        cost: of an image, by its patches.

    Returns:
        [images] the client that encodes each, by greedy bin packing.
    """
    return bins_by("greedy", sample_costs(cost, lengths), clients)
