"""What a user may choose about the demo, and the context window that suits the documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.packing import DocumentCost

STEPS = 100
"""Steps that the documents should last for: in fewer, the documents that wait in queues at the end
count for much."""

_CONTEXTS = tuple(1 << power for power in range(17, 7, -1))  # 131,072 down to 256


@dataclass(frozen=True, kw_only=True)
class PackingDemoOptions:
    """Options of ``evenstep demo-packing``."""

    data: Path | None = None
    """A folder, or a Parquet file with one document a row; None takes the standard library."""
    glob: str = "*.py"
    """Names of the files of a folder to read, in all folders below it."""
    column: str | None = None
    """Column of a Parquet file; None takes `text`, `input_ids` or the only one."""
    tokenizer: str | None = None
    """A ``tokenizer.json``, a folder that has one, or a name on the Hugging Face hub; None counts
    each byte of UTF-8 as a token, as byte-level models do."""
    documents: int | None = None
    """Documents to draw at random; None takes all."""
    context: int | None = None
    """Tokens that a micro-batch holds on average; None is `suitable_context`."""
    micro_batches: int = 4
    max_tokens: int | None = None
    """Tokens that no micro-batch exceeds; None is 1.25 x context."""
    queues: int = 2
    """Queues of WLB for outliers."""
    cost: DocumentCost = field(default_factory=DocumentCost)
    seed: int = 0
    """Decides which documents are drawn, and their order."""
    out: Path = Path("out/demo-packing")
    """The folder of the picture and the figures."""

    def __post_init__(self) -> None:
        check_at_least(
            1,
            documents=self.documents,
            context=self.context,
            micro_batches=self.micro_batches,
            max_tokens=self.max_tokens,
            queues=self.queues,
        )
        check_at_least(0, seed=self.seed)
        if self.out.exists() and not self.out.is_dir():
            raise ConfigurationError(f"out={self.out} is a file; name a folder")


def suitable_context(tokens: int, micro_batches: int) -> int:
    """The largest power of two from 256 to 131,072 with which `tokens` last for `STEPS` steps, or
    256 if none does."""
    for context in _CONTEXTS:
        if tokens >= STEPS * micro_batches * context:
            return context
    return _CONTEXTS[-1]
