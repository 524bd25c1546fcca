"""A job of two ranks with two workers each, as small as a job can be: it fails where the system
forbids what all jobs do, whether another check has thought of it or not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from evenstep.errors import described
from evenstep.tools.doctor.finding import Finding

_RANKS = 2
_SAMPLES = 40
_SECONDS = 300.0
_PROGRAM = "from evenstep.tools.doctor.trial import run_rank; run_rank({rank}, {port})"


def trial() -> Iterator[Finding]:
    import torch.distributed as dist

    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, says its page
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
    except RuntimeError as error:
        yield Finding(
            check="trial job",
            found=f"ranks cannot meet at 127.0.0.1 ({described(error)})",
            remedy="ip link set lo up; and allow connections to 127.0.0.1 in the firewall",
            breaks=True,
        )
        return
    begun = time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(rank=rank, port=store.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for rank in range(_RANKS)
    ]
    try:
        said = [
            each.communicate(timeout=max(begun + _SECONDS - time.monotonic(), 0.1))
            for each in ranks
        ]
        found = _failure([each.returncode for each in ranks], said)
        remedy, late = "see the error that it names: docs/faults.md", False
    except subprocess.TimeoutExpired:
        found, late = f"it did not end within {_SECONDS:.0f} s", True
        remedy = "try again when the machine has less to do; else its processes hang"
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    yield Finding(
        check="trial job",
        found=found or f"two ranks trained in {time.monotonic() - begun:.0f} s",
        remedy=remedy if found else "",
        breaks=bool(found) and not late,
    )


def _failure(codes: list[int], said: list[tuple[str, str]]) -> str:
    """What the ranks' errors say, the cause before its echo; empty if there is none."""
    lines = [
        f"rank {rank}: {(error.strip() or f'exit code {code}').splitlines()[-1]}"
        for rank, (code, (_, error)) in enumerate(zip(codes, said))
        if code
    ]
    if lines:
        return min(lines, key=lambda line: "PeerError" in line)
    taken = [int(output) for output, _ in said]
    return "" if sum(taken) == _SAMPLES else f"ranks got {taken} of {_SAMPLES} samples"


def run_rank(rank: int, port: int) -> None:
    """One rank, in a process of its own.

    Args:
        port: of the store where the ranks meet.
    """
    import torch.distributed as dist

    from evenstep.loader import DataLoader
    from evenstep.plan.policies.even import Even

    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]  # public, says its page
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS)
    loader = DataLoader(_Rows(), policy=Even(max_tokens=64, packed=True), num_workers=2)
    print(sum(len(step.indices or ()) for _, step in loader.steps()))
    dist.destroy_process_group()


class _Rows:
    """A data set."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": list(range(1 + index))}
