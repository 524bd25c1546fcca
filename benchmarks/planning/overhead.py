"""How long a rank takes to group and align one round, beside the released ODB package.

Both sides plan the same windows: lengths of the `ultrachat` distribution, another window on each of
W ranks, all of whose messages are recorded in advance. Timed is what one rank computes; a message
travels in no time. The package's all_gather becomes a copy of the recorded rows, which is the least
that receiving them costs.

    without loss scaling   evenstep: the policy's propose and settle
                           package:  grouping_data(loss_scaling=False)
    exact loss scaling     evenstep: a whole round of `RankProtocol`, both exchanges of it: buffer,
                                     plan, check, receipt of own groups, totals of everybody's,
                                     list of steps
                           package:  grouping_data(loss_scaling=True, loss_scaling_approx=False)

evenstep's loader always does the whole round, here under `TokenBudget`, which makes the same groups
as the package.

A measurement is the mean of calls in a row that take about 20 ms, or of one that takes longer.
Measurements of both sides alternate. Times are CPU time of the thread, so that other processes
disturb little; garbage collection is off.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.lib.report import Spread, Table, parser, progress, require_peer, show
from evenstep.plan import Groups, Policy, TokenBudget, Window
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.tools.simulate import sample_lengths

MAX_TOKENS = 12_288
BLOCK = 0.02  # seconds of calls, one after the other, that make one measurement
CHUNK = 16  # samples that arrive at a time in evenstep's loader; in the package's, one
Sample = dict[str, torch.Tensor]


class EvenstepCase:
    """Rank 0 of W, with the other ranks' messages of one round."""

    def __init__(self, lengths: np.ndarray, seed: int) -> None:
        self.policy: Policy = TokenBudget(max_tokens=MAX_TOKENS)
        self.seed = seed
        self.world_size, self.buffer = lengths.shape
        # As the loader counts labels that copy the tokens: all but the first are supervised.
        columns = np.stack([lengths, lengths - 1, np.zeros_like(lengths)], axis=2)
        self.chunks = np.array_split(columns[0], max(1, self.buffer // CHUNK))
        ranks = [self._protocol(rank) for rank in range(self.world_size)]
        self.hellos = [rank.outgoing() for rank in ranks]
        for rank, own in zip(ranks, columns):
            rank.incoming(self.hellos)
            rank.receive(own)
        self.proposals = [rank.outgoing() for rank in ranks]
        for rank in ranks:
            rank.incoming(self.proposals)
        self.receipts = [rank.outgoing() for rank in ranks]
        self.windows = [Window(lengths=own, ages=np.zeros_like(own), seed=seed) for own in lengths]
        proposals = [self.policy.propose(window) for window in self.windows]
        self.groups = [proposal.groups for proposal in proposals]
        self.messages = np.stack([proposal.message for proposal in proposals])
        self.steps = self.round()[1]

    def _protocol(self, rank: int) -> RankProtocol:
        return RankProtocol(
            EpochOptions(
                policy=self.policy,
                world_size=self.world_size,
                buffer_size=self.buffer,
                seed=self.seed,
            ),
            rank=rank,
        )

    def plan(self) -> float:
        begin = time.thread_time()
        proposal = self.policy.propose(self.windows[0])
        proposal.message.tobytes()
        plan = self.policy.settle(proposal, self.messages, 0)
        seconds = time.thread_time() - begin
        check_steps(len(plan.groups), self.steps)
        return seconds

    def round(self) -> tuple[float, int]:
        """Seconds and steps of a round."""
        rank = self._protocol(0)
        rank.outgoing()
        rank.incoming(self.hellos)
        for chunk in self.chunks:
            rank.receive(chunk)
        begin = time.thread_time()
        rank.outgoing()
        rank.incoming(self.proposals)
        rank.outgoing()
        steps = rank.incoming(self.receipts)
        return time.thread_time() - begin, len(steps)


class PeerCase:
    """Rank 0 of W in the package, which stands in for torch.distributed with this object."""

    def __init__(self, lengths: np.ndarray, groups: list[Groups], steps: int) -> None:
        from odb import grouping

        self._grouping = grouping
        self.world_size, self.buffer = lengths.shape
        self.steps = steps
        self.samples: list[Sample] = [
            {"input_ids": torch.empty(length, dtype=torch.int64)} for length in lengths[0].tolist()
        ]
        self.sent = 0
        # Its rows hold the index budget, the number of groups, then sizes and tokens of groups,
        # shortest first. Both sides cut windows alike, which `all_gather_into_tensor` verifies.
        self._rows = torch.zeros(self.world_size, 2 + 2 * self.buffer, dtype=torch.int64)
        for row, own, formed in zip(self._rows.numpy(), lengths, groups):
            tokens = formed.shapes(own).tokens
            row[:2] = self.buffer, len(formed)
            row[2 : 2 + len(formed)] = formed.sizes[::-1]
            row[2 + self.buffer : 2 + self.buffer + len(formed)] = tokens[::-1]

    def get_world_size(self, group: object) -> int:
        return self.world_size

    def get_rank(self, group: object) -> int:
        return 0

    def all_gather_into_tensor(self, out: torch.Tensor, own: torch.Tensor, group: object) -> None:
        self.sent += own.numel() * own.element_size()
        table = out.view(self.world_size, -1)
        if own.numel() == self.buffer:  # the second exchange: tokens after alignment, to be summed
            table.copy_(own.expand_as(table))
            return
        table.copy_(self._rows[:, : own.numel()])
        if not torch.equal(table[0], own):
            sys.exit("the package cut the window in another way, so the times do not compare")

    def run(self, *, loss_scaling: bool) -> float:
        self._grouping.dist, distributed = self, self._grouping.dist
        buffer = [[dict(sample)] for sample in self.samples]
        self.sent = 0
        begin = time.thread_time()
        groups, *_ = self._grouping.grouping_data(
            buffer,
            MAX_TOKENS,
            self,
            idx_budget=self.buffer,
            join_mode=True,
            loss_scaling=loss_scaling,
            loss_scaling_approx=False,
            max_groups=self.buffer,
        )
        seconds = time.thread_time() - begin
        self._grouping.dist = distributed
        check_steps(len(groups), self.steps)
        return seconds


def check_steps(made: int, expected: int) -> None:
    if made != expected:
        sys.exit(f"{made} steps planned where the other side planned {expected}")


@dataclass
class Case:
    """One row of the tables."""

    world_size: int
    buffer: int
    evenstep: EvenstepCase
    peer: PeerCase

    @classmethod
    def make(cls, world_size: int, buffer: int, seed: int) -> Case:
        drawn = sample_lengths("ultrachat", world_size * buffer, seed)
        lengths = drawn.reshape(world_size, buffer)
        evenstep = EvenstepCase(lengths, seed)
        peer = PeerCase(lengths, evenstep.groups, evenstep.steps)
        return cls(world_size, buffer, evenstep, peer)

    def subjects(self) -> dict[str, Callable[[], float]]:
        return {
            "evenstep": self.evenstep.plan,
            "evenstep_exact": lambda: self.evenstep.round()[0],
            "odb": lambda: self.peer.run(loss_scaling=False),
            "odb_exact": lambda: self.peer.run(loss_scaling=True),
        }

    def rows(self, seconds: dict[str, list[float]]) -> tuple[list[str], list[str]]:
        """The case's row in the table without loss scaling, and in that of exact loss scaling."""
        ms = {name: Spread.of([1e3 * s for s in values]) for name, values in seconds.items()}
        proposal, receipt = len(self.evenstep.proposals[0]), len(self.evenstep.receipts[0])
        found = []
        for suffix, sent in (("", proposal), ("_exact", proposal + receipt)):
            self.peer.run(loss_scaling=bool(suffix))
            own, peer = ms[f"evenstep{suffix}"], ms[f"odb{suffix}"]
            found.append(
                [
                    f"W={self.world_size}",
                    f"{self.buffer:,}",
                    f"{self.evenstep.steps:,}",
                    own.text(3),
                    peer.text(2),
                    f"{peer.median / own.median:.1f}x",
                    f"{1e3 * own.median / self.buffer:.2f}",
                    f"{sent:,}",
                    f"{self.peer.sent:,}",
                ]
            )
        return found[0], found[1]


def measure(cases: list[Case], repeats: int) -> list[tuple[list[str], list[str]]]:
    subjects = [case.subjects() for case in cases]
    calls: list[dict[str, int]] = [{} for _ in cases]
    seconds: list[dict[str, list[float]]] = [{name: [] for name in runs} for runs in subjects]
    gc.disable()
    for repeat in range(-1, repeats):
        for case, runs, number, taken in zip(cases, subjects, calls, seconds):
            progress(f"{repeat + 1}/{repeats}: W={case.world_size}, buffer {case.buffer}")
            for name, run in runs.items():
                if repeat < 0:  # not counted: finds how many calls make a measurement
                    number[name] = max(1, round(BLOCK / max(min(run(), run()), 1e-9)))
                else:
                    taken[name].append(sum(run() for _ in range(number[name])) / number[name])
    gc.enable()
    return [case.rows(taken) for case, taken in zip(cases, seconds)]


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.planning.overhead --world-sizes 8 --buffers 1024",
        repeats=15,
    )
    arguments.add_argument("--world-sizes", type=int, nargs="+", default=[8, 64])
    arguments.add_argument("--buffers", type=int, nargs="+", default=[256, 1024, 4096, 16_384])
    options = arguments.parse_args()
    require_peer()
    torch.set_num_threads(1)
    cases = [
        Case.make(world_size, buffer, options.seed)
        for world_size in options.world_sizes
        for buffer in options.buffers
    ]
    columns = ["ranks", "buffer", "steps", "evenstep ms", "ODB ms", "faster", "evenstep µs/sample"]
    columns += ["evenstep bytes", "ODB bytes"]
    show(
        *(
            Table(columns, rows, f"One round on one rank, {which}: median (p10-p90)")
            for which, rows in zip(
                ("without loss scaling", "exact loss scaling"),
                zip(*measure(cases, options.repeats)),
            )
        ),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
