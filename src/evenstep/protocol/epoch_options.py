"""`EpochOptions`: what all ranks of an epoch have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.plan.groups import NO_MULTIPLE, PaddedTo
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import check_at_least, check_one_of
from evenstep.protocol.window_buffer import RoundStart
from evenstep.protocol.window_size import check_buffer_size

EXHAUSTED_MODES = ("pad", "stop")


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """Equal on all ranks, which compare it in their hellos.

    Raises:
        ConfigurationError: a value is out of range.
    """

    policy: Policy
    world_size: int
    """Data-parallel ranks."""
    buffer_size: int | str
    """Samples that a rank may hold in its window; "auto": see `WindowSize`."""
    exhausted: str = "pad"
    """What happens when a rank has emitted all its samples before the others. "pad" (ODB's join
    mode): the epoch continues until all have, and that rank gets filler steps. "stop" (ODB's
    non-join mode): the epoch ends for all, and what the others hold is counted as undelivered."""
    accumulate: int = 1
    """Steps whose gradients are added up before the optimizer steps."""
    sizes: Sequence[tuple[int, int]] = ()
    """What `accumulate` may be instead, where larger groups fit than were known to, and the tokens
    of a group then: see `evenstep.plan.update_size.sizes_of`."""
    update_tokens: int = 0
    """Real tokens that an update should have on all ranks together; 0 where groups decide.
    Kept by policies with `target_tokens`: see `evenstep.protocol.agreed`."""
    seed: int = 0
    """Decides the order of groups, together with `epoch`."""
    epoch: int = 0
    padded_to: PaddedTo = NO_MULTIPLE
    """Multiples that samples are padded to."""
    sources: int = 0
    """Of a mixture, by which steps are counted too; 0 for any other dataset."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that must be equal, such as the dataset's size."""

    def __post_init__(self) -> None:
        check_buffer_size(self.buffer_size)
        check_at_least(1, world_size=self.world_size, accumulate=self.accumulate)
        check_at_least(0, epoch=self.epoch)
        check_one_of(EXHAUSTED_MODES, exhausted=self.exhausted)

    def compared(self, start: RoundStart) -> dict[str, Any]:
        """What a hello says of an epoch that begins there."""
        return {
            "world size": self.world_size,
            "policy": self.policy.fingerprint,
            "buffer_size": self.buffer_size,
            "exhausted": self.exhausted,
            "accumulate": self.accumulate,
            "sizes of updates": [list(size) for size in self.sizes],
            "update_tokens": self.update_tokens,
            "seed": self.seed,
            "epoch": self.epoch,
            "round to begin with": start.round,
            "step to begin with": start.step,
            "sample to deal next": start.next_entry,
            "use of labels": start.labels,
            "pad_to_multiple_of": [self.padded_to.samples, self.padded_to.rows],
            **self.others,
        }
