"""`AllToAll`: bytes between the ranks of a process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from evenstep.errors import PeerError
from evenstep.loader.options import Faults
from evenstep.loader.transport.lifeline_sockets import Meeting
from evenstep.loader.transport.lifelines import Lifelines
from evenstep.loader.transport.peers import Peer
from evenstep.loader.transport.rank_exchange import brief, device_of, place_in_group

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
        self._lifelines = Lifelines(self.rank)
        self._met = False

    def swap(self, parts: Sequence[bytes]) -> list[bytes]:
        """Sends each rank its part. All ranks call it together.

        Args:
            parts: [ranks] for each rank of the group.

        Returns:
            [ranks] what each rank has sent to this one.

        Raises:
            PeerError: a rank died, or did not call this within the group's timeout.
        """
        if self.ranks == 1:
            return list(parts)
        try:
            if not self._met:
                self._lifelines, self._met = self._meet(), True
            return self._swap(parts)
        except RuntimeError as error:
            cause = self._lifelines.cause() or (
                "a rank died, or did not call rebalance or restore within the timeout of the "
                "process group"
            )
            self._lifelines.close()
            raise PeerError(
                f"sequences could not be exchanged: {cause}; restart the job ({brief(error)})"
            ) from error

    def _meet(self) -> Lifelines:
        meeting = Meeting(self._group)
        cards = self._swap([Peer.here(door=meeting.door).card()] * self.ranks)
        peers = [Peer.read(rank, card) for rank, card in enumerate(cards)]
        return Lifelines(self.rank, meeting.meet(self.rank, peers, Faults().peer_timeout))

    def _swap(self, parts: Sequence[bytes]) -> list[bytes]:
        device = device_of(self._group)
        sent = torch.tensor([len(part) for part in parts], device=device)
        received = torch.empty_like(sent)
        data = torch.from_numpy(np.frombuffer(bytearray(b"".join(parts)), np.uint8)).to(device)
        self._wait(dist.all_to_all_single(received, sent, group=self._group, async_op=True))
        sizes = received.tolist()
        out = data.new_empty(sum(sizes))
        self._wait(
            dist.all_to_all_single(
                out, data, sizes, sent.tolist(), group=self._group, async_op=True
            )
        )
        whole, ends = out.cpu().numpy().tobytes(), np.cumsum(sizes).tolist()
        return [whole[end - size : end] for end, size in zip(ends, sizes)]

    def _wait(self, work: Any) -> None:
        """
        Raises:
            RuntimeError: the collective has failed, or a rank is lost.
        """
        pause = 0.0
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause + 1e-5, _LONGEST_SLEEP)
            self._lifelines.check(work, self._group)
        work.wait()
