"""What fits in memory, found while training: ``max_tokens="auto"``.

Groups begin with few tokens and grow to the share of memory that `Memory.share` allows. With every
size the trainer makes a few updates, then this looks at the peak of memory. Say 9 GiB are free for
groups, and those of 8,192 tokens took 1 GiB. Attention may take four times as much for twice the
tokens, so the next have ``8,192 * sqrt(9)``. Once less than half is left, the last two sizes of
packed groups show how much faster than tokens it grows; padded ones get more rows, and it grows as
they do. So the peak comes close to the limit from below.

Attention may also take memory as the square of a row. Where padded groups had rows of 600 tokens,
and the longest sample known has 900, those with that one may take 1.5 times as much. So near the
limit groups grow once one with the longest was seen, or smaller ones told what it takes. So it is
with patches of images: as dense a group as any before may come again.

On a CUDA device this reads the allocator's statistics, and resets none; on a CPU, what the system
says of this process. Where memory ran out all the same, and the loop goes on, groups have half as
many tokens from then on.
"""

from __future__ import annotations

import logging
import math
import os
import resource
from pathlib import Path
from typing import NamedTuple

import torch

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.plan.fit import Fit

logger = logging.getLogger("evenstep")

_FIRST, _FAR, _NEAR = 3, 2, 8
"""Updates that are made with the first groups, with others, and with those that take more than half
of what is free, before memory is looked at. The optimizer has its state after the first; the last
may be taken ahead, and not trained on yet; and memory that is freed is used again in part."""
_HALF = 2.0
_CLOSE = 1.04
"""What is free for groups over what they take, at which they grow no further."""
_MOST = 4.0
"""Groups grow by no more at a time."""
_ROWS = 1.1
"""Bytes of padded groups are as this power of their rows, at most."""
_WAIT = 64
"""Updates in which a group with the longest sample is waited for."""


class Usage(NamedTuple):
    """Bytes of this rank."""

    now: int
    peak: int
    """Since the process began, or the device's statistics were reset."""
    total: int
    """That this rank may have."""
    failures: int = 0
    """Times that memory ran out."""


class MemoryWatch:
    """Of one loader, in the trainer process."""

    def __init__(
        self, rank: int, ranks: int, *, packed: bool, share: float, total: int | None
    ) -> None:
        """
        Args:
            ranks: of the job, if nothing else says how many share this host's memory.
            packed: whether a group is one row.
            share: of the memory that groups may fill.
            total: bytes that there are, in place of what the system says.
        """
        self.found = 0, 0
        """Tokens of the groups now, and how many of them fit; zeros while that is not known."""
        self._rank = rank
        self._ranks = ranks
        self._packed = packed
        self._share = share
        self._total = total
        self._fit: Fit | None = None
        self._fitted = 0
        """Tokens of the groups of the size before."""
        self._left = self._next = _FIRST
        self._peak = self._failures = 0
        self._now = 0, 0.0
        """Tokens of groups seen, and bytes of the worst of them."""
        self._density = 0.0, 0.0
        """Patches of a group over its tokens, at most: of sizes before, and of this one."""
        self._exponent = 2.0
        """Bytes of a packed group are as this power of its tokens, at most."""
        self._begin()

    def _begin(self) -> None:
        """Groups have another size."""
        self._before, self._now = self._now, (0, 0.0)
        self._density = max(self._density), 0.0
        self._largest: list[int] = []  # of an update's groups, update by update
        self._pairs: list[int] = []  # of tokens times those of a row: before, and in this update
        self._patches: list[int] = []
        self._resting = 1 << 62

    def note_request(self) -> None:
        """The trainer asks for its next step."""
        if self._fit is None:
            return
        usage = self._usage()
        if usage.failures > self._failures:
            self._failures, self._peak = usage.failures, usage.peak
            self.found = self._fit.most, max(1, self._fit.most // 2)
            return
        self._resting = min(self._resting, usage.now)
        if self._left > 0:
            return
        free = int(self._share * usage.total) - self._resting
        # What the last update takes may not have been seen yet.
        seen, pairs = (max(each[:-1] or each, default=0) for each in (self._largest, self._pairs))
        taken = max(usage.peak - self._resting, 1)
        worst = self._worst(seen, pairs, max(self._patches[:-1] or self._patches), taken)
        ratio = free / worst
        fits = self._fit.most
        if free < taken and usage.peak > self._peak:
            fits, self._peak = max(1, int(seen * free / taken)), usage.peak
        elif not self._fit.grows:
            return
        elif ratio > _CLOSE:
            exponent = self._power(seen, worst) if ratio < _HALF else 2.0
            fits = max(fits, int(seen * min(ratio ** (1 / exponent), _MOST)))
        if self._now[0] == 0:
            self._next = _FAR if ratio > _HALF else _NEAR
        self._now = seen, worst
        if fits == self._fit.most and worst > _CLOSE * taken and -self._left < _WAIT:
            return
        self.found = self._fit.most, fits

    def _worst(self, seen: int, pairs: int, patches: int, taken: int) -> float:
        """Bytes of a group with the longest sample, or as many patches as any, at most."""
        assert self._fit is not None
        rows = 0 if self._packed else self._fit.longest / max(pairs, 1)
        longer = taken * max(seen * max(rows, max(self._density) / max(patches, 1)), 1.0)
        before, took = self._before
        more = took * (seen / before) ** _ROWS if before else 0.0
        return min(longer, more) if more > taken else longer

    def _power(self, tokens: int, taken: float) -> float:
        if not self._packed:  # rows alike, and more of them
            return _ROWS
        before, took = self._before
        if before and tokens > 1.2 * before:
            power = math.log(taken / took) / math.log(tokens / before)
            self._exponent = min(max(power, 1.0) + 0.25, 2.0)
        return self._exponent

    def handed_out(self, step: StepInfo, fit: Fit | None) -> None:
        """The trainer gets the step.

        Args:
            fit: what groups of its round may have.
        """
        if fit is None:
            return
        if self._fit is None:
            self._failures = self._usage().failures
        elif fit != self._fit:
            self._say(self._fit, fit)
            if fit.most != self._fit.most:
                self._fitted = self._fit.most
                self._left = self._next
                self._begin()
        self._fit = fit
        if step.micro_step == 0 or not self._largest:
            self._largest = [*self._largest[-_NEAR:], 0]
            self._pairs = [max(self._pairs, default=0), 0]
            self._patches = [max(self._patches, default=0), 0]
        tokens = step.padded_tokens
        self._largest[-1] = max(self._largest[-1], tokens)
        self._pairs[-1] = max(self._pairs[-1], tokens * tokens // max(step.samples, 1))
        self._patches[-1] = max(self._patches[-1], step.patches)
        before, dense = self._density
        self._density = before, max(dense, step.patches / max(tokens, 1))
        self._left -= step.ends_update

    def left(self) -> None:
        """The trainer leaves a pass: says what fits where memory ran out in it."""
        if self._fit is not None and self._usage().failures > self._failures:
            logger.error(
                'rank %d: memory ran out with groups of %d tokens, which max_tokens="auto" had '
                "found; %d fit before: pass that number, or a smaller Memory(share=)",
                self._rank,
                self._fit.most,
                self._fitted,
            )

    def _say(self, before: Fit, fit: Fit) -> None:
        if self._rank:
            return
        usage = self._usage()
        said = fit.most, usage.peak / 2**30, usage.total / 2**30
        if fit.grows and fit.most > before.most:
            logger.info("groups have up to %d tokens now; memory was at %.1f of %.1f GiB", *said)
        elif before.grows > fit.grows or fit.most < before.most:
            logger.warning(
                'max_tokens="auto" is %d tokens; memory was at %.1f of %.1f GiB. Pass this number '
                "to begin with it",
                *said,
            )

    def _usage(self) -> Usage:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            free, _ = torch.cuda.mem_get_info()
            held = torch.cuda.memory_reserved()
            return Usage(
                torch.cuda.memory_allocated(),
                torch.cuda.max_memory_allocated(),
                self._total or free + held,
                torch.cuda.memory_stats()["num_ooms"],
            )
        now, peak = _of_process("VmRSS:", "VmHWM:")
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", self._ranks))
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        share = _of_host() // ranks
        return Usage(now, peak, self._total or (min(share, limit) if limit > 0 else share))


def _of_process(*names: str) -> list[int]:
    """Bytes that the system says of this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(
            'max_tokens="auto" reads the memory of this process from /proc, which this system does '
            "not have; pass a number of tokens"
        ) from error
    said = dict(line.split(None, 1) for line in lines if line.startswith("Vm"))
    return [int(said[name].split()[0]) << 10 for name in names]


def _of_host() -> int:
    """Bytes that the processes of this container, or of this host, have together."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            most = min(most, int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such limit
            continue
    return most
