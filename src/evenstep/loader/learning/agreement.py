"""What the first rank found, on all ranks.

One exchange, of which only the first rank's message holds anything. It is made by the exchange
thread like those of a pass: so a rank that dies, fails or leaves meanwhile is an error on all
others that names it, and one that is slow is waited for and named in the log.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from evenstep.errors import PeerError, described
from evenstep.loader.transport.rank_exchange import RankExchange
from evenstep.loader.transport.session import Session
from evenstep.loader.transport.ticks import Doing
from evenstep.protocol import wire

_SERIAL = -1  # of no pass
_POLL_SECONDS = 0.2  # between two checks whether an answer can still come


def from_first_rank(exchange: RankExchange, find: Callable[[], bytes]) -> bytes:
    """What `find` returns on the first rank, which alone calls it. All ranks call this.

    Raises:
        PeerError: the first rank failed, or a rank is lost.
        Exception: on the first rank, what `find` raises.
    """
    place = exchange.place
    if place.size == 1:
        return find()
    ours, theirs = multiprocessing.Pipe()
    left = False
    session = Session(theirs, _SERIAL, lambda: not left, of_processes=True)
    exchange.patience.trainer(Doing.WAITS, -1)
    exchange.begin(session)
    try:
        body = b"" if place.number else find()
        try:
            ours.send((_SERIAL, wire.encode(wire.LEARNED, body, rank=place.number, round=0)))
            while not ours.poll(_POLL_SECONDS):
                if session.over.is_set():
                    raise EOFError
            _, messages = ours.recv()
            ours.send((_SERIAL, b""))
        except (EOFError, OSError) as error:
            ended = PeerError("the exchange between ranks has ended")
            raise session.broken or exchange.failure or ended from error
        bodies = wire.open_all(messages, wire.LEARNED, 0, rank=place.number, epoch=0)
        while not session.over.wait(_POLL_SECONDS):
            pass
        return bytes(bodies[0])
    except BaseException as error:
        left = True
        session.leave(None if isinstance(error, KeyboardInterrupt) else described(error))
        raise
    finally:
        exchange.patience.trainer(Doing.HAS_LEFT)
        ours.close()
