"""Predicts the time of a training step under 4D parallelism: WLB-LLM's section 6 without its GPUs.

From the inside out, as imbalance propagates (section 3.1):

1. A layer over a micro-batch: attention of the slowest context-parallel rank; then matrix products,
   element-wise operations and collectives, which are linear in the tokens of a rank. Nothing
   overlaps within a layer.
2. A pass over a stage: its layers one after the other.
3. A data-parallel rank: 1F1B over its micro-batches, each pass with its own time.
4. The step: the slowest data-parallel rank, then the sum of the gradients.

Optimizer, embeddings, logits and loading are left out. Sizes and ranks are those of the paper's
Table 1; its machines have 8 H100 SXM each, NVLink within and RoCE between. All other figures are
assumptions from data sheets, or chosen in advance; none was fitted to a figure of the paper. The
attention kernel is that of no GPU either: its shares of the peak are on the low side of published
ones, most of all for short fragments, so that a sequence is cut finer only where that gains more
than the kernel may lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.papers.wlb.attention_latency import AttentionLatency
from benchmarks.papers.wlb.packing_run import Packed
from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import whole_costs
from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches
from evenstep.plan.sharding.adaptive import shard

SHARDINGS = ("per-sequence", "per-document", "hybrid")
"""Methods of cutting a micro-batch over context-parallel ranks. The first two are WLB-LLM's."""
STAGES = 4
HEAD, VOCABULARY, BYTES = 128, 32_000, 2  # size of a head; entries; bytes of a bf16 element
BACKWARD = 2.0  # time over that of forward, for matrix products and element-wise operations
PEAK = 989e12  # dense bf16 products of an H100 SXM
MATRIX_SHARE = 0.6  # of the peak, that matrix products reach
MEMORY = 2.4e12  # bytes/s that element-wise operations read and write: 0.7 of 3.35e12
ELEMENTWISE = 40  # times that a layer reads or writes the residual width for a token, forward
NODE = 8  # GPUs that NVLink connects
INSIDE, BETWEEN = 360e9, 40e9  # bytes/s each way: 0.8 of NVLink's, and of a 400 Gb/s port
COLLECTIVE = 20e-6  # seconds of a collective call, without its bytes
QUERIES = {128: 0.20, 256: 0.32, 512: 0.40, 1024: 0.46, 4096: 0.55}  # share of the peak
KEYS = {128: 0.5, 512: 0.75, 2048: 0.95, 8192: 1.0}  # share of that, with fewer keys
ATTENTION_BACKWARD = 0.8  # of the forward throughput


def gather(received: Float64Array | float, ranks: int, span: int) -> Float64Array | float:
    """Seconds of an all-gather or a reduce-scatter.

    Args:
        received: bytes of all ranks together.
        span: GPUs over which these ranks are spread.
    """
    link = INSIDE if span <= NODE else BETWEEN
    return COLLECTIVE + received * (ranks - 1) / ranks / link if ranks > 1 else 0.0 * received


@dataclass(frozen=True)
class StepModel:
    """Seconds of the passes and steps of a job. Tensor-parallel ranks are next to each other, then
    context-, pipeline- and data-parallel ones."""

    name: str
    layers: int
    hidden_size: int
    ffn_size: int
    context: int
    tensor: int
    context_ranks: int
    data: int = 1

    @property
    def layer_parameters(self) -> int:
        return self.hidden_size * (4 * self.hidden_size + 3 * self.ffn_size)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + 2 * VOCABULARY * self.hidden_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: stages x data-parallel ranks (section 6.1)."""
        return STAGES * self.data

    @cached_property
    def latency(self) -> AttentionLatency:
        forward = [[share * PEAK / 1e12 * of for of in KEYS.values()] for share in QUERIES.values()]
        return AttentionLatency(
            heads=self.hidden_size // HEAD // self.tensor,
            head_size=HEAD,
            queries=tuple(QUERIES),
            keys=tuple(KEYS),
            forward_tflops=tuple(map(tuple, forward)),
            backward_tflops=tuple(tuple(ATTENTION_BACKWARD * x for x in row) for row in forward),
            forward_launch=10e-6,
            backward_launch=30e-6,
        )

    def linear(self, tokens: Int64Array) -> Float64Array:
        """[2, micro-batches] forward and backward seconds of a layer without its attention kernel.

        Args:
            tokens: [micro-batches] tokens of the whole micro-batch; ranks have equally many.
        """
        own = -(-tokens // self.context_ranks).astype(np.float64)  # tokens of a rank
        products = 2 * own * self.layer_parameters / self.tensor / (MATRIX_SHARE * PEAK)
        activations = own * self.hidden_size * BYTES
        computing = products + ELEMENTWISE * activations / self.tensor / MEMORY
        # Activations are gathered before and scattered after attention and the feed-forward
        # network; keys and values of all tokens are gathered by context-parallel ranks.
        inner = 4 * gather(activations, self.tensor, self.tensor)
        kept = 2.0 * tokens * self.hidden_size / self.tensor * BYTES
        inner += gather(kept, self.context_ranks, self.tensor * self.context_ranks)
        both = np.stack([computing, BACKWARD * computing]) + inner
        return np.where(tokens > 0, both, 0.0)

    def attention(self, lengths: Int64Array, method: str) -> Float64Array:
        """[2] seconds of one layer's attention on the slowest rank, forward and backward."""
        if not len(lengths):
            return np.zeros(2)
        plan = shard(lengths, self.context_ranks, latency=self.latency, methods=(method,))
        slowest: Float64Array = self.latency.of_ranks(plan).max(axis=1)
        return slowest

    def document_cost(self) -> DocumentCost:
        """The cost of documents for packers: the seconds of a token over those of a pair, for a
        document as long as the window, cut over the ranks."""
        context = np.array([self.context])
        pair = 2 * float(self.attention(context, "per-document").sum()) / self.context**2
        token = float(self.linear(context).sum()) / self.context
        return DocumentCost(linear=round(2 * token / pair))

    def attentions(self, packed: Packed, methods: Sequence[str]) -> Mapping[str, Float64Array]:
        """[2, micro-batches] seconds of one layer's attention under each method, and under
        "adaptive", the fastest of them, as its prediction is never wrong here."""
        found = np.array([[self.attention(d, m) for d in packed.documents] for m in methods])
        fastest = found.sum(axis=2).argmin(axis=0)
        adaptive = found[fastest, np.arange(len(fastest))]
        return {name: each.T for name, each in zip((*methods, "adaptive"), (*found, adaptive))}

    def steps(
        self, packed: Packed, attention: Float64Array, *, ordered: bool = False
    ) -> Float64Array:
        """[steps] seconds of each step.

        Args:
            attention: [2, micro-batches] seconds of a layer.
            ordered: the micro-batches of a step are dealt to data-parallel ranks by their cost,
                and each pipeline runs its own in the order that suits it. False takes them as they
                come.
        """
        tokens = np.array([each.sum() for each in packed.documents])
        passes = self.layers // STAGES * (attention + self.linear(tokens))
        sends = self.context / self.context_ranks * self.hidden_size * BYTES
        schedule = PipelineSchedule(stages=STAGES, latency=sends / self.tensor / BETWEEN)
        if ordered:
            passes = self._ordered(passes, schedule)
        ahead, back = passes.reshape(2, -1, STAGES)
        slowest = schedule.makespans(ahead.T, back.T).reshape(-1, self.data).max(axis=1)
        ranks = self.context_ranks * self.data
        own = self.parameters / self.tensor / STAGES * BYTES
        span = self.tensor * ranks * (STAGES if self.data > 1 else 1)
        return np.asarray(slowest + 2 * gather(own, ranks, span))

    def _ordered(self, passes: Float64Array, schedule: PipelineSchedule) -> Float64Array:
        both = passes.reshape(2, -1, self.micro_batches)
        chosen = []
        for step, costs in enumerate(both.sum(axis=0)):  # costs: [micro-batches]
            rank_of = place(whole_costs(costs), self.data, equal_counts=True)
            # The schedule takes forward times, and derives the backward passes from them.
            forward = costs / (1 + schedule.backward)
            for rank in range(self.data):
                share = np.flatnonzero(rank_of == rank)
                chosen.append(both[:, step, share[order_micro_batches(forward[share], schedule)]])
        return np.concatenate(chosen, axis=1)


SIZES = {
    "550M": (16, 1536, 4128),
    "7B": (32, 4096, 11_008),
    "30B": (64, 6144, 16_512),
    "70B": (84, 8192, 22_016),
}
"""Layers, width and that of feed-forward networks: 7B is LLaMA2-7B, the others have its ratios."""
TABLE_1 = tuple(
    StepModel(f"{name}-{window}K", *SIZES[name], 1024 * window, tensor, ranks, data)
    for name, window, tensor, ranks, data in (
        ("550M", 64, 2, 2, 2),
        ("550M", 128, 2, 4, 1),
        ("7B", 64, 4, 2, 1),
        ("7B", 128, 8, 2, 1),
        ("30B", 64, 8, 2, 1),
        ("30B", 128, 8, 4, 1),
        ("70B", 64, 16, 4, 1),
        ("70B", 128, 16, 4, 1),
    )
)
"""WLB-LLM's Table 1."""
