"""How the exchange grows with the number of ranks: W state machines in one process.

All ranks' `RankProtocol` machines run whole rounds under `Even` over an in-memory exchange: real
windows, real messages, nothing left out but the network. Samples are dealt to ranks on demand.
Reported per rank and round: bytes sent and received, and the CPU time of everything the rank does,
both exchanges of the round included. The time is that of 16 ranks; the others share what the
messages say.
"""

from __future__ import annotations

import gc
import time

import numpy as np

from benchmarks.lib.report import Spread, Table, parser, progress, show
from evenstep.plan import Even
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.wire import Exchanged
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.rank import SimulatedRank

MAX_TOKENS, BUFFER = 12_288, 256
TIMED = 16  # ranks whose time is taken


def measure(world_size: int, rounds: int, seed: int) -> list[str]:
    # Samples for some rounds more: near the end of the epoch less is dealt out.
    share = BUFFER * (rounds + 3)
    stream = sample_lengths("ultrachat", world_size * share, seed=seed)
    options = EpochOptions(
        policy=Even(max_tokens=MAX_TOKENS), world_size=world_size, buffer_size=BUFFER, seed=seed
    )
    ranks = [
        SimulatedRank(
            RankProtocol(options, rank=rank, share=share, entries=len(stream)), stream[:0], stream
        )
        for rank in range(world_size)
    ]
    stride = max(1, world_size // TIMED)
    hellos = Exchanged([rank.outgoing() for rank in ranks])
    for rank in ranks:
        rank.incoming(hellos)
    sent, milliseconds, steps = [], [], []
    for number in range(rounds):
        progress(f"{world_size} ranks: round {number + 1} of {rounds}")
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
    each = float(np.mean(sent))
    row = [f"{world_size:,}", f"{np.mean(steps):,.0f}", f"{each:,.0f}"]
    return [*row, f"{each * world_size / 1e3:,.1f}", Spread.of(milliseconds).text(2)]


def main() -> None:
    example = "python -m benchmarks.planning.scale --worlds 8 64"
    arguments = parser(__doc__ or "", example, repeats=2)
    arguments.add_argument("--worlds", type=int, nargs="+", default=[8, 64, 512, 4096])
    options = arguments.parse_args()
    gc.disable()
    rows = [measure(world_size, options.repeats, options.seed) for world_size in options.worlds]
    names = ["ranks", "steps", "bytes sent", "kB received", "ms of a rank"]
    title = "one round, of one rank; time: median (10th-90th percentile)"
    show(Table(names, rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
