"""Bytes between the ranks of a process group. All ranks call each function together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from evenstep.errors import PeerError

_ON_HOST = ("gloo", "mpi", "undefined")  # backends that take CPU tensors


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in the group, and the group's size."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group)
    return 0, 1


def swap(parts: Sequence[bytes], group: dist.ProcessGroup | None) -> list[bytes]:
    """Sends each rank its part.

    Args:
        parts: [ranks] for each rank of the group.

    Returns:
        [ranks] what each rank has sent to this one.

    Raises:
        PeerError: a rank died, or did not call this within the group's timeout.
    """
    if len(parts) == 1:
        return list(parts)
    host = dist.get_backend(group) in _ON_HOST
    device = torch.device("cpu" if host else torch.accelerator.current_accelerator() or "cuda")
    sent = torch.tensor([len(part) for part in parts], device=device)
    received = torch.empty_like(sent)
    data = torch.from_numpy(np.frombuffer(bytearray(b"".join(parts)), np.uint8)).to(device)
    try:
        dist.all_to_all_single(received, sent, group=group)
        sizes = received.tolist()
        out = data.new_empty(sum(sizes))
        dist.all_to_all_single(out, data, sizes, sent.tolist(), group=group)
        whole = out.cpu().numpy().tobytes()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise PeerError(
            "sequences could not be exchanged: a rank died, or did not call rebalance or restore "
            f"within the timeout of the process group; restart the job ({reason})"
        ) from error
    ends = np.cumsum(sizes).tolist()
    return [whole[end - size : end] for end, size in zip(ends, sizes)]
