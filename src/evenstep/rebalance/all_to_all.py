"""`AllToAll`: bytes between the ranks of a process group.

Gloo now and then misses that a connection was closed, and its collective then waits on. So a rank
that sees another one's end says so in the store by which the group was formed, and a rank that
waits asks there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from evenstep.errors import PeerError
from evenstep.loader.transport.presence import Presence
from evenstep.loader.transport.rank_exchange import device_of, place_in_group

_ASK_SECONDS = 1.0  # between two questions to the store
_LONGEST_SLEEP = 0.05  # between two looks at a collective


class AllToAll:
    """All ranks of the group make theirs in the same order."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """
        Args:
            group: the default group when None, or this process alone where there is none.
        """
        place = place_in_group(group, 1)
        self.rank, self.ranks = place.rank, place.world_size
        self._group = group
        self._presence = Presence(group, self.rank, self.ranks) if self.ranks > 1 else None

    def swap(self, parts: Sequence[bytes]) -> list[bytes]:
        """Sends each rank its part. All ranks call it together.

        Args:
            parts: [ranks] for each rank of the group.

        Returns:
            [ranks] what each rank has sent to this one.

        Raises:
            PeerError: a rank died, or did not call this within the group's timeout.
        """
        if self._presence is None:
            return list(parts)
        device = device_of(self._group)
        sent = torch.tensor([len(part) for part in parts], device=device)
        received = torch.empty_like(sent)
        data = torch.from_numpy(np.frombuffer(bytearray(b"".join(parts)), np.uint8)).to(device)
        try:
            self._wait(dist.all_to_all_single(received, sent, group=self._group, async_op=True))
            sizes = received.tolist()
            out = data.new_empty(sum(sizes))
            self._wait(
                dist.all_to_all_single(
                    out, data, sizes, sent.tolist(), group=self._group, async_op=True
                )
            )
            whole = out.cpu().numpy().tobytes()
        except RuntimeError as error:
            self._presence.lose()
            reason = str(error).splitlines()[0]
            raise PeerError(
                "sequences could not be exchanged: a rank died, or did not call rebalance or "
                "restore within the timeout of the process group; restart the job "
                f"({reason})"
            ) from error
        ends = np.cumsum(sizes).tolist()
        return [whole[end - size : end] for end, size in zip(ends, sizes)]

    def _wait(self, work: Any) -> None:
        """
        Raises:
            RuntimeError: the collective has failed, here or on another rank.
        """
        assert self._presence is not None
        asked, pause = time.monotonic(), 0.0
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause + 1e-5, _LONGEST_SLEEP)
            if time.monotonic() - asked >= _ASK_SECONDS:
                if self._presence.any_lost():
                    raise RuntimeError("another rank has lost a connection")
                asked = time.monotonic()
        work.wait()
