"""What ranks say to each other, without I/O: bytes go out, everybody's bytes come in.

```
state      message sent   next state, on everybody's messages
HELLO      hello          FILLING   all ranks were built alike
FILLING    proposal       SETTLING  some rank has samples; FINISHED when none has
SETTLING   receipt        FILLING   the round's steps are known to all
FINISHED   none
```

`rank_protocol` is the state machine of one rank and one epoch. It uses `window_buffer` (what the
rank has received), `wire` (messages as bytes), `receipts` (totals of every step) and `planned_step`
(the steps of a settled round).
"""

from evenstep.protocol.planned_step import PlannedStep, SettledRound
from evenstep.protocol.rank_protocol import EXHAUSTED_MODES, RankProtocol
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["EXHAUSTED_MODES", "PlannedStep", "RankProtocol", "RoundStart", "SettledRound"]
