"""Limits of a step of packed micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.packing.document_cost import DocumentCost


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """A step has at most `micro_batches` micro-batches of at most `max_tokens` each."""

    context: int
    """Tokens that a micro-batch without outliers holds on average."""
    micro_batches: int
    max_tokens: int | None = None
    """Tokens that no micro-batch exceeds, a limit of memory. None is 1.25 x context. It must be at
    least 1.1 x context: with less room, micro-batches without long documents could not cost as much
    as those with them."""
    max_delay: int = 256
    """Rounds after which an outlier does not wait for others any longer."""
    cost: DocumentCost = field(default_factory=DocumentCost)

    def __post_init__(self) -> None:
        check_given(context=self.context, micro_batches=self.micro_batches)
        check_at_least(1, context=self.context, micro_batches=self.micro_batches)
        check_at_least(0, max_delay=self.max_delay)
        check_at_least(1, max_tokens=self.max_tokens)
        if 10 * self.cap < 11 * self.context:
            raise ConfigurationError(
                f"max_tokens={self.max_tokens} must be at least 1.1 x context, "
                f"{-(-11 * self.context // 10):,}, or long documents cannot be balanced; raise "
                "max_tokens or lower context"
            )
        self.cost.check_range(self.cap * self.micro_batches)

    @property
    def cap(self) -> int:
        """`max_tokens`, or its default."""
        if self.max_tokens is None:
            return max(5 * self.context // 4, -(-11 * self.context // 10))
        return self.max_tokens

    def check(self, lengths: Int64Array) -> None:
        """Raises `SampleError` if a document fits in no micro-batch."""
        if len(lengths) and int(lengths.max()) > self.cap:
            longest = int(lengths.argmax())
            raise SampleError(
                f"document {longest} has {lengths[longest]:,} tokens, over the {self.cap:,} of a "
                "micro-batch; split or truncate it (`cut_long`), or raise max_tokens"
            )
