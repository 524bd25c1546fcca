"""The messages that ranks exchange, without I/O: bytes go out, all ranks' bytes come in.

No rank is sent its plan: each plans its own part of a round, by a policy and the proposals of all.
In the service one planner plays all ranks, and sends the plan to the Data Constructors.

A `RankProtocol` is one rank in one epoch. All ranks are in the same state; each state ends with one
exchange, in which every rank sends one message and receives those of all ranks:

```
state      this rank sends      when all ranks' messages are in
---------  -------------------  --------------------------------------------------------------------
HELLO      hello: how it was    -> FILLING
           built, samples left
FILLING    proposal, as soon    -> FINISHED  if no rank has samples left; under exhausted="stop",
           as `wanted` is 0                  if any rank has none left
                                -> SETTLING  otherwise: every rank plans its part of the round
SETTLING   receipt: totals of   -> FILLING   with the steps of the round, and the next round begins
           its steps, samples   -> FINISHED  under exhausted="stop", if some rank has no samples for
           left, a lent sample               a step: the round's steps are withdrawn on all ranks
FINISHED   nothing
```

Where ranks are dealt their samples on demand (`dealt_windows`), a hello counts those queued, and
the end of each round decides the next deal. A round in which nothing can be planned, as all that
some rank was dealt is bad, has no steps.

Instead of any message a rank may send an abort, which ends the epoch on all ranks with `PeerError`;
so does an empty message, from a rank that has left, and a damaged one. A hello of a rank that was
built differently, or a message of another state or round, raises `MismatchError`. After an error
the protocol is not used any more. `docs/how-it-works.md` has the invariants.

In reading order:

    epoch_options    `EpochOptions`, what all ranks have in common
    rank_protocol    `RankProtocol`, the state machine
    all_ranks        `AllRanks`, every rank's machine in one place: what a centre plans with
    rank_round       one rank's part of a round: window, proposal, planned steps; samples lent to
                     ranks that have none to run zero-loss steps with
    agreed           what ranks agree on from round to round, of what was measured
    slow_ranks       which ranks need more time than their work explains
    window_buffer    the samples that a rank has received and not yet emitted; `RoundStart`
    window_size      how many samples a window should hold
    dealt_windows    windows of ranks that share one stream, dealt out on demand
    look_ahead       windows of ranks that each have a fixed share
    planned_step     `PlannedStep` and the tables of its round
    receipts         what a rank sends of its steps, and totals of all, as each rank learns them
    bodies           hello, proposal and receipt as bytes
    wire             the head of every message, and aborts; `Exchanged`: all ranks' messages
"""

from evenstep.protocol.epoch_options import EXHAUSTED_MODES, EpochOptions
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.rank_protocol import RankProtocol
from evenstep.protocol.window_buffer import RoundStart

__all__ = [
    "EXHAUSTED_MODES",
    "EpochOptions",
    "PlannedStep",
    "RankProtocol",
    "RoundStart",
]
