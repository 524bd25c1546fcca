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
as the package. Measurements of both sides alternate. Times are CPU time of the thread, so that
other processes disturb little; garbage collection is off.
"""

from __future__ import annotations

import gc
import sys
import time

import numpy as np
import torch

from benchmarks.lib.report import Table, in_turn, parser, show, spreads
from evenstep.plan import Groups, TokenBudget, Window
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.tools.simulate import sample_lengths

RANKS, BUFFERS = 8, (256, 1024, 4096)
MAX_TOKENS = 12_288
CALLS = 10  # a measurement is the mean of so many
CHUNK = 16  # samples that arrive at a time in evenstep's loader; in the package's, one


class EvenstepCase:
    """Rank 0, with the other ranks' messages of one round."""

    def __init__(self, lengths: np.ndarray, seed: int) -> None:
        self.policy = TokenBudget(max_tokens=MAX_TOKENS, spread=False)
        self.buffer, self.seed = lengths.shape[1], seed
        # As the loader counts labels that copy the tokens: all but the first are supervised.
        columns = np.stack([lengths, lengths - 1, np.zeros_like(lengths)], axis=2)
        self.chunks = np.array_split(columns[0], self.buffer // CHUNK)
        ranks = [self._protocol(rank) for rank in range(RANKS)]
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

    def _protocol(self, rank: int) -> RankProtocol:
        options = EpochOptions(
            policy=self.policy, world_size=RANKS, buffer_size=self.buffer, seed=self.seed
        )
        return RankProtocol(options, rank=rank)

    def plan(self) -> tuple[float, int]:
        """Seconds and steps."""
        begin = time.thread_time()
        proposal = self.policy.propose(self.windows[0])
        proposal.message.tobytes()
        plan = self.policy.settle(proposal, self.messages, 0)
        return time.thread_time() - begin, len(plan.groups)

    def round(self) -> tuple[float, int]:
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
    """Rank 0 in the package, which stands in for torch.distributed with this object."""

    def __init__(self, lengths: np.ndarray, groups: list[Groups]) -> None:
        from odb import grouping

        self._grouping, self.buffer = grouping, lengths.shape[1]
        sizes = lengths[0].tolist()
        self.samples = [{"input_ids": torch.empty(n, dtype=torch.int64)} for n in sizes]
        # Its rows hold the index budget, the number of groups, then sizes and tokens of groups,
        # shortest first. Both sides cut windows alike, which `all_gather_into_tensor` verifies.
        self._rows = torch.zeros(RANKS, 2 + 2 * self.buffer, dtype=torch.int64)
        for row, own, formed in zip(self._rows.numpy(), lengths, groups):
            tokens = formed.shapes(own).tokens
            row[:2] = self.buffer, len(formed)
            row[2 : 2 + len(formed)] = formed.sizes[::-1]
            row[2 + self.buffer : 2 + self.buffer + len(formed)] = tokens[::-1]

    def get_world_size(self, group: object) -> int:
        return RANKS

    def get_rank(self, group: object) -> int:
        return 0

    def all_gather_into_tensor(self, out: torch.Tensor, own: torch.Tensor, group: object) -> None:
        table = out.view(RANKS, -1)
        if own.numel() == self.buffer:  # the second exchange: tokens after alignment, to be summed
            table.copy_(own.expand_as(table))
            return
        table.copy_(self._rows[:, : own.numel()])
        if not torch.equal(table[0], own):
            sys.exit("the package cut the window in another way, so the times do not compare")

    def run(self, *, loss_scaling: bool) -> tuple[float, int]:
        self._grouping.dist, distributed = self, self._grouping.dist
        buffer = [[dict(sample)] for sample in self.samples]
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
        return seconds, len(groups)


def measure(buffer: int, repeats: int, seed: int) -> list[str]:
    lengths = sample_lengths("ultrachat", RANKS * buffer, seed).reshape(RANKS, buffer)
    own = EvenstepCase(lengths, seed)
    peer = PeerCase(lengths, own.groups)
    sides = {
        "evenstep": own.plan,
        "ODB": lambda: peer.run(loss_scaling=False),
        "evenstep, exact": own.round,
        "ODB, exact": lambda: peer.run(loss_scaling=True),
    }
    planned = {side: run()[1] for side, run in sides.items()}
    if len(set(planned.values())) > 1:
        sys.exit(f"steps are not the same, so the times do not compare: {planned}")

    def timed(side: str) -> dict[str, float]:
        return {"ms": 1e3 * sum(sides[side]()[0] for _ in range(CALLS)) / CALLS}

    ms = {side: spreads(runs)["ms"] for side, runs in in_turn(sides, repeats, timed).items()}
    return [f"{buffer:,}", f"{planned['ODB']:,}", *(each.text(2) for each in ms.values())]


def main() -> None:
    example = "python -m benchmarks.planning.overhead --repeats 5"
    options = parser(__doc__ or "", example, repeats=15).parse_args()
    torch.set_num_threads(1)
    gc.disable()
    rows = [measure(buffer, options.repeats, options.seed) for buffer in BUFFERS]
    columns = ["buffer", "steps", "evenstep ms", "ODB ms", "evenstep, exact ms", "ODB, exact ms"]
    title = f"One round on one of {RANKS} ranks: median (p10-p90)"
    show(Table(columns, rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
