"""The trainer's position in an epoch: what it has received, not what is prefetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.loss_scale import LossTotals
from evenstep.batch.step_info import StepInfo
from evenstep.cost.vision_language import UNMEASURED
from evenstep.loader.batcher.batcher_messages import BadSample, StepProgress
from evenstep.loader.resume.sample_order import OrderChecksum
from evenstep.loader.resume.state_schema import MEDIA
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch import UNSIZED, Progress, Remaining, Stream
from evenstep.plan.fit import Fit, Updates
from evenstep.plan.value_checks import plain_value
from evenstep.protocol.window_buffer import TOO_LONG, RoundStart


@dataclass(frozen=True, kw_only=True)
class EpochProgress:
    """The round that the trainer is in, the steps of it that it has received, and what this rank's
    arrival numbers count."""

    epoch: int
    stream: Stream | None
    """What the ranks share in this pass; None where each rank has an order of its own."""
    dealt: bool = False
    """Samples of the stream are dealt to ranks on demand, so its entries are a rank's places."""
    share: Stream = field(default_factory=lambda: Stream(UNSIZED))
    """The places of this rank's share that arrival numbers count, where it has a fixed one."""
    start: RoundStart = field(default_factory=RoundStart.empty)
    """The beginning of the round."""
    received: int = 0
    """Steps of the round that the trainer has received."""
    trained: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Arrival numbers that those steps trained on."""
    update: LossTotals = field(default_factory=LossTotals)
    """See `RoundProgress.update`. Where windows are formed again it begins at zero: what was left
    of the update is then one of its own."""
    checksum: OrderChecksum = field(default_factory=OrderChecksum)
    """Checksum of the order that this rank's samples came in, by places of its share."""
    checksum_before_reshard: OrderChecksum = field(default_factory=OrderChecksum)
    """As `checksum`, from the ranks before the last re-sharding, by positions of the epoch."""
    worker_states: WorkerStates | None = None
    """States from which the workers of an iterable dataset yield the window again."""
    stateless: bool = False
    """The iterable dataset has no such states, so the epoch cannot be resumed here."""
    skipped: tuple[BadSample, ...] = ()
    lengths_before: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Those that the first samples of the pass had, where windows are formed again."""
    resumed: bool = False
    """The pass began from a state, so the dataset did not begin at its beginning."""
    samples: int = 0
    """Samples of all ranks in the steps received, in this epoch and all before it."""
    too_long: tuple[int, int] = (0, 0)
    """Samples of all ranks that were too long: before this epoch, or in it before its ranks last
    changed; and, as of the last step received, in all."""

    @property
    def step(self) -> int:
        """Steps of the epoch that the trainer has received."""
        return self.start.step + self.received

    @property
    def untouched(self) -> bool:
        """Whether the epoch has not started."""
        return (
            not self.step and self.start.taken == 0 and (self.stream is None or self.stream.whole)
        )

    @property
    def arrival_progress(self) -> Progress:
        """How far this rank is, in arrival numbers."""
        unfinished = np.setdiff1d(self.start.numbers, self.trained, assume_unique=True)
        return Progress(self.start.taken, unfinished)

    @property
    def remaining(self) -> Remaining:
        """What this rank still has to receive, as far as it is decided."""
        if self.dealt:
            start = self.start
            untrained = self.arrival_progress.unfinished
            queued = start.taken + np.arange(start.queued)
            window = start.entries[np.searchsorted(start.numbers, untrained)]
            return Remaining(
                numbers=np.concatenate([untrained, queued]),
                places=np.concatenate([window, start.entries[len(start.numbers) :]]),
                number=start.taken + start.queued,
                place=UNSIZED,
            )
        return Remaining.of(self.share, self.arrival_progress)

    @property
    def place_progress(self) -> Progress:
        """How far this rank is, in places of its share."""
        left = self.share.after([self.arrival_progress])
        return Progress(left.tail, left.leftover)

    def after(self, step: StepInfo, message: StepProgress, *, iterable: bool) -> EpochProgress:
        """Where the trainer is once it has received a step. A new object, so that a state saved
        meanwhile, in a signal handler say, is that before the step or that after it."""
        changes: dict[str, Any] = {}
        trained, first_step = self.trained, self.start.step
        if (new_round := message.new_round) is not None:
            trained, first_step = new_round.trained, new_round.start.step
            changes = {
                "start": new_round.start,
                "update": new_round.update,
                "worker_states": new_round.worker_states,
                "stateless": iterable and new_round.worker_states is None,
                "skipped": self.skipped + new_round.bad,
            }
        if step.indices:
            start = changes.get("start", self.start)
            if self.dealt:
                places = start.entries[np.searchsorted(start.numbers, message.members)]
            else:
                places = self.share.positions(message.members)
            changes["checksum"] = OrderChecksum.of(places.tolist(), step.indices)
        return replace(
            self,
            received=step.step - first_step + 1,
            trained=np.concatenate([trained, message.members]),
            samples=self.samples + step.global_samples,
            too_long=(self.too_long[0], step.too_long),
            **changes,
        )

    def with_new_windows(self) -> EpochProgress:
        """The same point of the epoch, with windows formed again from what remains."""
        start, share = self.start, self.share
        number = start.round + bool(self.received)
        new = replace(start.fresh(), round=number, step=self.step, too_long=self.own_too_long)
        if self.dealt:
            new = replace(new, entries=self.remaining.places, next_entry=start.next_entry)
        else:
            share = share.after([self.arrival_progress])
        none, untrained = np.empty(0, np.int64), ~np.isin(start.numbers, self.trained)
        fresh = replace(self, received=0, trained=none, update=LossTotals(), resumed=False)
        lengths = start.columns[0, untrained]  # they are numbered from 0 on, as they were
        return replace(fresh, share=share, start=new, lengths_before=lengths)

    @property
    def own_too_long(self) -> int:
        """Samples of this rank that were too long, without those of its window that are not trained
        on: they count once they are in a window again."""
        start = self.start
        left = ~np.isin(start.numbers, self.trained)
        return start.too_long - int(np.count_nonzero(start.columns[5, left] & TOO_LONG))

    def shared_dict(self) -> dict[str, Any]:
        """The part of a state that is the same on all ranks that save it at the same step."""
        stream, ratios, fits = self.stream, self.start.ratios, self.start.fits
        updates = asdict(self.start.updates)
        return {
            **({"ratios": [list(each) for each in ratios]} if any(map(any, ratios)) else {}),
            **({"fits": [asdict(fit) for fit in fits], "updates": updates} if fits else {}),
            **({"filled": list(self.start.filled)} if any(self.start.filled) else {}),
            "number": self.epoch,
            "round": self.start.round,
            "step": self.start.step,
            "received": self.received,
            "update": asdict(self.update),
            "window_size": self.start.window_size,
            "window_limit": self.start.window_limit,
            "labels": self.start.labels,
            "next_entry": self.start.next_entry if self.dealt else None,
            "samples": self.samples,
            **({"too_long": list(self.too_long)} if any(self.too_long) else {}),
            "order": self.checksum_before_reshard.to_dict(),
            "stream": None  # a stream of which nothing is left is false
            if stream is None
            else {"total": stream.total, "tail": stream.tail, "leftover": stream.leftover.tolist()},
        }

    def rank_dict(self) -> dict[str, Any]:
        """This rank's own part of a state."""
        # First labels are counted already, as the state's "labels" says.
        lengths, supervised, patches, *media, shows, source = self.start.columns.tolist()
        own: dict[str, Any] = {}
        # Only where media are counted, so that a state of text holds nothing more.
        counted = dict(zip(MEDIA, media)) if any(map(any, media)) else {}
        if any(source):
            counted["source"] = source
        if self.start.too_long:
            counted["too_long"] = [shown & TOO_LONG for shown in shows]
            own["too_long_so_far"] = self.start.too_long
        window = self.start.numbers
        return {
            **own,
            "taken": self.start.taken,
            "quota": self.start.quota,
            "numbers": window.tolist(),
            "lengths": lengths,
            "supervised": supervised,
            "patches": patches,
            **counted,
            "ages": self.start.ages.tolist(),
            "seen_lengths": list(self.start.seen_lengths),
            "entries": self.start.entries.tolist(),
            "trained": np.searchsorted(window, self.trained).tolist(),
            "share": {"tail": self.share.tail, "leftover": self.share.leftover.tolist()},
            "checksum": self.checksum.to_dict(),
            "workers": self.worker_states.to_json() if self.worker_states else None,
            "skipped": [[plain_value(bad.index), bad.reason] for bad in self.skipped],
        }

    @classmethod
    def from_dicts(cls, shared: Mapping[str, Any], rank: Mapping[str, Any] | None) -> EpochProgress:
        """Inverse of `shared_dict` and `rank_dict`. Where `rank` is None, as in a merged state, no
        rank has formed a window."""
        stream = shared["stream"]
        if stream is not None:
            stream = Stream(stream["total"], stream["tail"], np.array(stream["leftover"], np.int64))
        ratios = tuple((pair, patch) for pair, patch in shared.get("ratios", [UNMEASURED] * 2))
        now, then = (Fit(**fit) for fit in shared["fits"]) if "fits" in shared else (None, None)
        start = RoundStart.empty(
            shared["round"],
            shared["step"],
            labels=shared["labels"],
            ratios=(ratios[1], ratios[1]),
            fits=None if then is None else (then, then),
            updates=Updates(**shared.get("updates", {})),
            filled=tuple(shared.get("filled", (0, 0))),
        )
        merged = cls(
            epoch=shared["number"],
            stream=stream,
            dealt=shared["next_entry"] is not None,
            start=start,
            samples=shared["samples"],
            too_long=tuple(shared.get("too_long", (0, 0))),
            checksum_before_reshard=OrderChecksum.from_dict(shared["order"]),
        )
        if rank is None:
            return merged
        numbers = np.array(rank["numbers"], np.int64)
        names = ("lengths", "supervised", "patches", *MEDIA, "too_long", "source")
        columns = [rank.get(name, [0] * len(numbers)) for name in names]
        share, states, seen = rank["share"], rank["workers"], rank["seen_lengths"]
        return replace(
            merged,
            share=Stream(UNSIZED, share["tail"], np.array(share["leftover"], np.int64)),
            start=replace(
                start,
                taken=rank["taken"],
                quota=rank["quota"],
                window_size=shared["window_size"],
                window_limit=shared["window_limit"],
                entries=np.array(rank["entries"], np.int64),
                next_entry=shared["next_entry"] or 0,
                seen_lengths=(seen[0], seen[1]),
                too_long=rank.get("too_long_so_far", 0),
                numbers=numbers,
                columns=np.array(columns, np.int64),
                ages=np.array(rank["ages"], np.int64),
                ratios=(ratios[0], ratios[1]),
                fits=None if now is None or then is None else (now, then),
            ),
            received=shared["received"],
            trained=numbers[np.array(rank["trained"], np.int64)],
            update=LossTotals(**shared["update"]),
            checksum=OrderChecksum.from_dict(rank["checksum"]),
            worker_states=WorkerStates.from_json(states) if states is not None else None,
            skipped=tuple(BadSample(merged.epoch, index, why) for index, why in rank["skipped"]),
        )
