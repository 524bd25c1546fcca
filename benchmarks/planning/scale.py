"""How the exchange grows with the number of ranks: W state machines in one process.

All ranks' `RankProtocol` machines run whole rounds over an in-memory exchange: real windows, real
messages, nothing left out but the network. Under `Even` samples are dealt to ranks on demand, under
`TokenBudget` each has its share. Reported per rank and round: bytes sent and received, and the CPU
time of everything the rank does, both exchanges of the round included. The time is that of 16
ranks; the others share what the messages say.
"""

from __future__ import annotations

import gc
import time
from itertools import product

import numpy as np

from benchmarks.lib.report import Spread, Table, parser, progress, show
from evenstep.arrays import Int64Array
from evenstep.plan import Even, Policy, TokenBudget
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.wire import Exchanged
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.rank import SimulatedRank

MAX_TOKENS = 12_288
POLICIES: dict[str, Policy] = {
    "token-budget": TokenBudget(max_tokens=MAX_TOKENS),
    "even": Even(max_tokens=MAX_TOKENS),
}
TIMED = 16  # ranks whose time is taken


def make_ranks(
    policy: Policy, lengths: Int64Array, *, buffer_size: int, seed: int
) -> list[SimulatedRank]:
    """Ranks at the begin of an epoch, as `simulate` runs them: where the policy says so, they share
    one stream, which is dealt out to them on demand.

    Args:
        lengths: [ranks, samples] of each rank's share, or that make the stream.
    """
    world_size, share = lengths.shape
    stream = lengths.T.ravel() if policy.deals_on_demand else None
    return [
        SimulatedRank(
            RankProtocol(
                EpochOptions(
                    policy=policy, world_size=world_size, buffer_size=buffer_size, seed=seed
                ),
                rank=rank,
                share=share,
                entries=None if stream is None else len(stream),
            ),
            own if stream is None else own[:0],
            stream,
        )
        for rank, own in enumerate(lengths)
    ]


def measure(name: str, world_size: int, buffer: int, rounds: int, seed: int) -> list[str]:
    # Samples for some rounds more: near the end of the epoch less is dealt out.
    drawn = sample_lengths("ultrachat", world_size * buffer * (rounds + 3), seed=seed)
    lengths = drawn.reshape(world_size, -1)
    ranks = make_ranks(POLICIES[name], lengths, buffer_size=buffer, seed=seed)
    stride = max(1, world_size // TIMED)
    hellos = Exchanged([rank.outgoing() for rank in ranks])
    for rank in ranks:
        rank.incoming(hellos)
    sent, milliseconds, steps = [], [], []
    for number in range(rounds):
        progress(f"{name}, {world_size} ranks, buffer {buffer}: round {number + 1} of {rounds}")
        seconds = np.zeros(world_size)
        size, made = 0, 0
        for rank in ranks:
            rank.fill()
        for _ in range(2):
            messages = []
            for place, rank in enumerate(ranks):
                begin = time.thread_time()
                messages.append(rank.protocol.outgoing())
                seconds[place] += time.thread_time() - begin
            size += sum(map(len, messages))
            shared = Exchanged(messages)
            for place, rank in enumerate(ranks):
                received = shared if place % stride else messages
                begin = time.thread_time()
                made = len(rank.protocol.incoming(received))
                seconds[place] += time.thread_time() - begin
        sent.append(size / world_size)
        milliseconds.extend(1e3 * seconds[::stride])
        steps.append(made)
    mean_sent, mean_steps, taken = np.mean(sent), np.mean(steps), Spread.of(milliseconds)
    return [
        name,
        f"{world_size:,}",
        f"{buffer:,}",
        f"{mean_steps:,.0f}",
        f"{mean_sent:,.0f}",
        f"{mean_sent * world_size / 1e3:,.1f}",
        taken.text(2),
        f"{taken.median / mean_steps:.3f}",
    ]


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.planning.scale --worlds 8 64", repeats=2
    )
    arguments.add_argument("--worlds", type=int, nargs="+", default=[8, 64, 512, 4096])
    arguments.add_argument("--buffers", type=int, nargs="+", default=[256, 1024])
    options = arguments.parse_args()
    gc.disable()
    rows = []
    for name, buffer, world_size in product(POLICIES, options.buffers, options.worlds):
        rows.append(measure(name, world_size, buffer, options.repeats, options.seed))
    names = ["policy", "ranks", "buffer", "steps", "bytes sent", "kB received", "ms of a rank"]
    title = "one round, of one rank; time: median (10th-90th percentile)"
    show(Table([*names, "ms per step"], rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
