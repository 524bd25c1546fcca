"""Ranks, limits and costs of dynamic context parallelism; what it costs that ranks share a row.

Each rank of a group receives the keys and values of the others' tokens and sends their gradients
back. That takes time in proportion to the tokens of the row, however many ranks share it, whereas
each rank's attention shrinks with their number. Attention hides as much of the exchange as it takes
itself; the ranks wait for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.sharding.attention_tiles import TILE

Number = TypeVar("Number", int, Int64Array)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Cost of exchange, in the units of `DocumentCost` for each token that a rank receives.

    The defaults are for `DocumentCost`'s own default, a model of 7B parameters, with 8 of 32 heads
    for keys and values, on H100 GPUs: 8 KB a token and layer, forward and back, at 360 GB/s within
    a node and 40 GB/s between nodes.
    """

    within: int = 300
    """Between ranks of one node."""
    between: int = 2500
    """Where the ranks are more than a node has."""
    node: int = 8
    """Ranks of a node."""

    def __post_init__(self) -> None:
        check_at_least(0, within=self.within, between=self.between)
        check_at_least(1, node=self.node)

    def of(self, ranks: Number, tokens: Number) -> Number:
        """What each of `ranks` ranks receives of a row of `tokens`, hidden or not."""
        far = ranks > self.node
        rate = self.within + (self.between - self.within) * far
        return rate * tokens * (ranks - 1) // ranks


@dataclass(frozen=True, kw_only=True)
class DynamicContext:
    """What `plan_dynamic_context` plans for."""

    ranks: int
    """Ranks that documents are spread over: data-parallel times context-parallel."""
    tokens_per_rank: int
    """Tokens that a rank holds in a micro-batch, at most: a limit of memory."""
    cost: DocumentCost = field(default_factory=DocumentCost)
    exchange: Exchange = field(default_factory=Exchange)
    multiple_of: int = 1
    """The number of micro-batches is a multiple of this, as virtual pipelines need."""
    pipeline: bool = False
    """Whether micro-batches run through the stages of a pipeline, where the longest one is waited
    for at every stage: they then take equally long too, as far as memory allows. Those of long
    documents hold fewer tokens, so long documents are on more ranks."""
    powers_of_two: bool = False
    """Groups have 1, 2, 4, 8, ... ranks and begin at a multiple of their size, as Megatron-LM's
    do; so has the whole of them. Groups are then less even, and larger."""

    def __post_init__(self) -> None:
        check_given(ranks=self.ranks, tokens_per_rank=self.tokens_per_rank)
        check_at_least(
            1,
            ranks=self.ranks,
            tokens_per_rank=self.tokens_per_rank,
            multiple_of=self.multiple_of,
        )
        if self.powers_of_two and self.ranks & (self.ranks - 1):
            raise ConfigurationError(
                f"ranks={self.ranks} must be a power of two, as a document that needs all of them "
                "would not be in a group of such a size; or leave out powers_of_two"
            )
        self.cost.check_range(self.ranks * self.tokens_per_rank)

    @property
    def capacity(self) -> int:
        """Tokens of a micro-batch, at most."""
        return self.ranks * self.tokens_per_rank

    def attention(self, lengths: Int64Array) -> Int64Array:
        """[documents] cost of attention in whole documents, in the tiles that a kernel computes."""
        rows = -(-lengths // TILE)  # of tiles, the last with as many tiles as there are rows
        return self.cost.quadratic * TILE * TILE * (rows * (rows + 1))

    def rough(self, longest: Number) -> Number:
        """What the slowest rank of a group has more than the mean: ranks are cut at whole tiles of
        rows and exchange some, so about a quarter of a row of tiles of the longest document."""
        return self.cost.quadratic * TILE * longest // 2

    def check(self, lengths: Int64Array) -> None:
        """Raises `SampleError` if a document does not fit on all ranks together, or is empty."""
        if not len(lengths):
            return
        if int(lengths.min()) < 1:
            at = int(lengths.argmin())
            raise SampleError(
                f"document {at} has {lengths[at]} tokens; remove documents without tokens"
            )
        at = int(lengths.argmax())
        if int(lengths[at]) > self.capacity:
            raise SampleError(
                f"document {at} has {lengths[at]:,} tokens, over the {self.capacity:,} that "
                f"{self.ranks} ranks of {self.tokens_per_rank:,} hold; split or truncate it "
                "(evenstep.CutDocuments), or raise tokens_per_rank"
            )
