"""Models, parallelism and hardware of `step_time_model`: all assumptions in one place.

WLB-LLM's Table 1 gives sizes, windows and ranks. Its models have the architecture of LLaMA2-7B with
other numbers of layers and widths; its machines have 8 H100 SXM each, NVLink within and RoCE
between. All other figures here are assumptions from data sheets, or chosen in advance; none was
fitted to a figure of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.wlb.assumed_latency import H100_TFLOPS
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """A transformer with gated feed-forward networks and as many key heads as query heads, as
    LLaMA2-7B has."""

    name: str
    layers: int
    hidden_size: int
    ffn_size: int
    head_size: int = 128
    vocab_size: int = 32_000

    @property
    def heads(self) -> int:
        return self.hidden_size // self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer's matrices."""
        return self.hidden_size * (4 * self.hidden_size + 3 * self.ffn_size)

    @property
    def parameters(self) -> int:
        """All parameters, embeddings and output projection included."""
        return self.layers * self.layer_parameters + 2 * self.vocab_size * self.hidden_size


MODELS = {
    model.name: model
    for model in (
        ModelSize(name="550M", layers=16, hidden_size=1536, ffn_size=4128),
        ModelSize(name="7B", layers=32, hidden_size=4096, ffn_size=11_008),
        ModelSize(name="30B", layers=64, hidden_size=6144, ffn_size=16_512),
        ModelSize(name="70B", layers=84, hidden_size=8192, ffn_size=22_016),
    )
}
"""7B is LLaMA2-7B; the others have its ratios of widths."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hardware figures per GPU, for bf16."""

    peak_tflops: float = H100_TFLOPS
    matrix_share: float = 0.6
    """Share of the peak that matrix products reach."""
    memory: float = 2.4e12
    """Bytes a second that element-wise operations read and write: 0.7 of an H100's 3.35e12."""
    node: int = 8
    """GPUs that NVLink connects."""
    inside: float = 360e9
    """Bytes a second each way within a node: 0.8 of NVLink's 450e9."""
    between: float = 40e9
    """Bytes a second each way between nodes: 0.8 of one 400 Gb/s port for each GPU."""
    collective: float = 20e-6
    """Seconds of a collective call, without its bytes."""
    elementwise: int = 40
    """Times that element-wise operations of a layer read or write the residual width for a token,
    forward; twice that backward. Tensor-parallel ranks share them."""

    def link(self, ranks: int) -> float:
        """Bytes a second of the slowest link between `ranks` neighbouring GPUs."""
        return self.inside if ranks <= self.node else self.between

    def gather(self, received: float, ranks: int, span: int) -> float:
        """Seconds of an all-gather or a reduce-scatter.

        Args:
            received: bytes of all ranks together.
            ranks: ranks that take part.
            span: GPUs over which these ranks are spread.
        """
        if ranks == 1:
            return 0.0
        return self.collective + received * (ranks - 1) / ranks / self.link(span)


@dataclass(frozen=True, kw_only=True)
class ClusterAssumptions:
    """A training job: its model, context window and ranks. Tensor-parallel ranks are next to each
    other, then context-, pipeline- and data-parallel ones."""

    model: ModelSize
    context: int
    tensor: int
    context_ranks: int
    stages: int = 4
    data: int = 1

    def __post_init__(self) -> None:
        check_at_least(
            1,
            context=self.context,
            tensor=self.tensor,
            context_ranks=self.context_ranks,
            stages=self.stages,
            data=self.data,
        )
        for what, whole, parts in (
            ("heads", self.model.heads, self.tensor),
            ("layers", self.model.layers, self.stages),
        ):
            if whole % parts:
                raise ConfigurationError(
                    f"{self.model.name} has {whole} {what}, which {parts} ranks cannot share"
                )

    @property
    def name(self) -> str:
        return f"{self.model.name}-{self.context // 1024}K"

    @property
    def gpus(self) -> int:
        return self.tensor * self.context_ranks * self.stages * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: stages x data-parallel ranks (section 6.1)."""
        return self.stages * self.data


_TABLE_1 = (
    ("550M", 64, 2, 2, 2),
    ("550M", 128, 2, 4, 1),
    ("7B", 64, 4, 2, 1),
    ("7B", 128, 8, 2, 1),
    ("30B", 64, 8, 2, 1),
    ("30B", 128, 8, 4, 1),
    ("70B", 64, 16, 4, 1),
    ("70B", 128, 16, 4, 1),
)
TABLE_1 = tuple(
    ClusterAssumptions(
        model=MODELS[name], context=1024 * window, tensor=tensor, context_ranks=ranks, data=data
    )
    for name, window, tensor, ranks, data in _TABLE_1
)
"""WLB-LLM's Table 1."""
