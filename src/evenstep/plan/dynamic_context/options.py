"""Ranks, limits and costs of dynamic context parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.dynamic_context.exchange import Exchange, Number
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.sharding.attention_tiles import TILE


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
