"""Predicts the time of a training step under 4D parallelism: WLB-LLM's section 6 without its GPUs.

From the inside out, as imbalance propagates (section 3.1):

1. A layer over a micro-batch: attention of the slowest context-parallel rank, by a latency model;
   then matrix products, element-wise operations and collectives, which are linear in the tokens of
   a rank. Nothing overlaps within a layer, except for the exchange of keys with attention if
   wanted.
2. A pass over a stage: its layers one after the other.
3. A data-parallel rank: 1F1B over its micro-batches in the order given, each pass with its own
   time.
4. The step: the slowest data-parallel rank, then the sum of the gradients.

Optimizer, embeddings, logits and loading are left out. Everything here is a prediction: constants
come from `cluster_assumptions`, the time of attention from an `AttentionLatency`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.papers.wlb.assumed_latency import assumed_latency
from benchmarks.papers.wlb.attention_latency import AttentionLatency
from benchmarks.papers.wlb.cluster_assumptions import Cluster, ClusterAssumptions
from benchmarks.papers.wlb.packing_run import Trained
from benchmarks.papers.wlb.pipeline_run import share_micro_batches
from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches
from evenstep.plan.sharding import Sharding, shard_per_document
from evenstep.plan.sharding.adaptive import shard

SHARDINGS = ("per-sequence", "per-document", "hybrid")
"""Methods of cutting a micro-batch over context-parallel ranks. The first two are WLB-LLM's."""

BYTES = 2
"""Bytes of a bf16 element."""
_BACKWARD = 2.0
"""Backward over forward time, for matrix products and element-wise operations."""


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """The micro-batches of all steps, as lists of lengths.

    Every step has `per_step` of them; if fewer were packed, the others are empty.
    """

    documents: Sequence[Int64Array]
    """[steps x per_step] lengths of the documents of each, in the order of the sequence; empty for
    an empty micro-batch."""
    per_step: int

    @classmethod
    def of(cls, trained: Trained, per_step: int) -> MicroBatches:
        """The micro-batches that a packer made, from the first step to the last."""
        if not len(trained.length):
            raise ConfigurationError("nothing was trained on; give more documents")
        step = trained.step - trained.step.min()
        number = step * per_step + trained.micro_batch  # [n] micro-batch of each document
        order = number.argsort(kind="stable")
        ends = np.bincount(number, minlength=(int(step.max()) + 1) * per_step).cumsum()
        return cls(documents=np.split(trained.length[order], ends[:-1]), per_step=per_step)

    @property
    def steps(self) -> int:
        return len(self.documents) // self.per_step

    @cached_property
    def tokens(self) -> Int64Array:
        """[steps x per_step] tokens of each micro-batch."""
        return np.array([lengths.sum() for lengths in self.documents], np.int64)


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Seconds of the passes and steps of a job."""

    setting: ClusterAssumptions
    latency: AttentionLatency
    """Has the heads of one GPU, as `StepModel.of` checks."""
    cluster: Cluster

    @classmethod
    def of(
        cls,
        setting: ClusterAssumptions,
        *,
        cluster: Cluster | None = None,
        latency: AttentionLatency | None = None,
    ) -> StepModel:
        """The model of a job on a cluster.

        Args:
            latency: None is the default for the cluster's GPU.

        Raises:
            ConfigurationError: `latency` was measured with other heads than a GPU of the job has.
        """
        cluster = cluster or Cluster()
        heads, size = setting.model.heads // setting.tensor, setting.model.head_size
        if latency is None:
            latency = assumed_latency(heads=heads, head_size=size, peak_tflops=cluster.peak_tflops)
        if (latency.heads, latency.head_size) != (heads, size):
            raise ConfigurationError(
                f"the latency was measured with {latency.heads} heads of {latency.head_size}, and "
                f"a GPU of {setting.name} has {heads} of {size}; measure those"
            )
        return cls(setting=setting, latency=latency, cluster=cluster)

    def linear(self, tokens: Int64Array, ranks: Int64Array | None = None) -> Float64Array:
        """[2, micro-batches] forward and backward seconds of a layer without its attention kernel.

        Args:
            tokens: [micro-batches] tokens of the whole micro-batch; ranks have equally many.
            ranks: [micro-batches] context-parallel ranks that share each; None is the job's.
        """
        setting, cluster, model = self.setting, self.cluster, self.setting.model
        shared_by = np.full(len(tokens), setting.context_ranks) if ranks is None else ranks
        own = -(-tokens // shared_by).astype(np.float64)  # tokens of a rank
        products = 2 * own * model.layer_parameters / setting.tensor
        products /= cluster.matrix_share * cluster.peak_tflops * 1e12
        touched = own * cluster.elementwise * model.hidden_size * BYTES / setting.tensor
        touched /= cluster.memory
        # Sequence parallelism: activations are gathered before and scattered after attention and
        # the feed-forward network; the backward pass does the same in reverse.
        activations = own * model.hidden_size * BYTES
        tensor = np.full(len(tokens), setting.tensor)
        inner = 4 * _gathers(cluster, activations, tensor, tensor)
        computing = products + touched
        both = np.stack([computing, _BACKWARD * computing]) + inner  # [2, micro-batches]
        both += self.exchange(tokens, shared_by)
        seconds: Float64Array = np.where(tokens > 0, both, 0.0)
        return seconds

    def exchange(self, tokens: Int64Array, ranks: Int64Array) -> Float64Array:
        """[micro-batches] seconds in which context-parallel ranks gather keys and values of all
        tokens in a layer, and as long for their gradients. Arguments as for `linear`."""
        setting = self.setting
        kept = 2.0 * tokens * setting.model.hidden_size / setting.tensor * BYTES
        return _gathers(self.cluster, kept, ranks, setting.tensor * ranks)

    def layer(
        self,
        tokens: Int64Array,
        attention: Float64Array,
        ranks: Int64Array | None = None,
        *,
        hidden: bool = False,
    ) -> Float64Array:
        """[2, micro-batches] forward and backward seconds of a layer.

        Args:
            attention: [2, micro-batches] of its kernel.
            hidden: whether the exchange overlaps with attention, so that only the rest of it takes
                extra time.
        """
        shared_by = np.full(len(tokens), self.setting.context_ranks) if ranks is None else ranks
        both: Float64Array = attention + self.linear(tokens, shared_by)
        if hidden:
            both -= np.minimum(self.exchange(tokens, shared_by), attention)
        return both

    def attention(self, plan: Sharding) -> Float64Array:
        """[2] seconds of one layer's attention on the slowest rank, forward and backward."""
        slowest: Float64Array = self.latency.of_ranks(plan).max(axis=1)
        return slowest

    def document_cost(self) -> DocumentCost:
        """The cost of documents for packers: the seconds of a token over those of a pair, for a
        document as long as the window, cut over the ranks."""
        context = np.array([self.setting.context])
        whole = shard_per_document(context, self.setting.context_ranks)
        pair = 2 * float(self.attention(whole).sum()) / float(context[0]) ** 2
        token = float(self.linear(context).sum()) / float(context[0])
        return DocumentCost(linear=round(2 * token / pair))

    def attentions(
        self,
        packed: MicroBatches,
        methods: Sequence[str] = SHARDINGS[:2],
    ) -> Mapping[str, Float64Array]:
        """Attention of every micro-batch under each sharding method.

        Args:
            methods: names in `SHARDINGS` to compute and to choose from.

        Returns:
            name -> [2, micro-batches] seconds of one layer: for each of `methods`; for "adaptive",
            the fastest of them, as its prediction is never wrong here.
        """
        found = {name: np.zeros((2, len(packed.documents))) for name in (*methods, "adaptive")}
        for index, lengths in enumerate(packed.documents):
            if not len(lengths):
                continue
            seconds = {
                name: self.attention(
                    shard(
                        lengths,
                        self.setting.context_ranks,
                        latency=self.latency,
                        methods=(name,),
                    )
                )
                for name in methods
            }
            seconds["adaptive"] = min(seconds.values(), key=np.sum)
            for name, both in seconds.items():
                found[name][:, index] = both
        return found

    def steps(
        self,
        packed: MicroBatches,
        attention: Float64Array,
        *,
        ordered: bool = False,
        hidden: bool = False,
    ) -> Float64Array:
        """[steps] seconds of each step.

        Args:
            attention: [2, micro-batches] seconds of a layer, as `attentions` returns them.
            ordered: the micro-batches of a step are distributed to data-parallel ranks by their
                cost, and each pipeline runs its own in the order that suits it. False takes them as
                they come.
            hidden: see `layer`.

        Raises:
            ConfigurationError: steps do not have stages x data micro-batches.
        """
        setting = self.setting
        if packed.per_step != setting.micro_batches:
            raise ConfigurationError(
                f"steps have {packed.per_step} micro-batches, and {setting.name} takes "
                f"{setting.micro_batches}"
            )
        layers = setting.model.layers // setting.stages
        passes = layers * self.layer(packed.tokens, attention, hidden=hidden)
        schedule = self._schedule()
        shared = passes.reshape(2, -1, setting.data, setting.stages)  # [2, steps, data, stages]
        if ordered:
            shared = self._ordered(passes, schedule)
        ahead, back = shared.reshape(2, -1, setting.stages)
        slowest = schedule.makespans(ahead.T, back.T)  # [steps x data]
        steps: Float64Array = slowest.reshape(-1, setting.data).max(axis=1)
        return steps + self._gradients()

    def pipeline(self, layer: Float64Array) -> float:
        """Seconds of a step of one pipeline, its micro-batches in the order that suits it.

        Args:
            layer: [2, micro-batches] forward and backward seconds of a layer.
        """
        schedule = self._schedule()
        passes = self.setting.model.layers // self.setting.stages * layer
        order = order_micro_batches(passes.sum(axis=0) / (1 + schedule.backward), schedule)
        ahead, back = passes[:, order, None]
        makespan = float(schedule.makespans(ahead, back)[0])
        return makespan + self._gradients()

    def _schedule(self) -> PipelineSchedule:
        """1F1B, with the time that activations take from a stage to the next."""
        setting = self.setting
        sends = setting.context / setting.context_ranks * setting.model.hidden_size * BYTES
        latency = sends / setting.tensor / self.cluster.between
        return PipelineSchedule(stages=setting.stages, latency=latency)

    def _ordered(self, passes: Float64Array, schedule: PipelineSchedule) -> Float64Array:
        """[2, steps, data, stages] the passes of each data-parallel rank, in the order they run."""
        both = passes.reshape(2, -1, self.setting.micro_batches)
        chosen = []
        for step, costs in enumerate(both.sum(axis=0)):  # costs: [micro-batches]
            shares = share_micro_batches(costs, self.setting.data)
            # The schedule takes forward times, and derives the backward passes from them.
            forward = costs / (1 + schedule.backward)
            ordered = np.stack([s[order_micro_batches(forward[s], schedule)] for s in shares])
            chosen.append(both[:, step, ordered])
        return np.stack(chosen, axis=1)

    def _gradients(self) -> float:
        """Seconds to sum the gradients of a GPU's parameters over the ranks that replicate them."""
        setting = self.setting
        ranks = setting.context_ranks * setting.data
        own = setting.model.parameters / setting.tensor / setting.stages * BYTES
        span = setting.gpus if setting.data > 1 else setting.tensor * ranks
        return 2 * self.cluster.gather(own, ranks, span)


def _gathers(
    cluster: Cluster, received: Float64Array, ranks: Int64Array, span: Int64Array
) -> Float64Array:
    columns = (received.tolist(), ranks.tolist(), span.tolist())
    return np.array([cluster.gather(*each) for each in zip(*columns)])
