"""The peers, and what each needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENTS = Path(".venv-peers")
LOCKS = Path("benchmarks/peers/locks")
WORKLOADS = {
    "padded": "text to padded batches",
    "images": "JPEG to tensors",
    "mixture": "a mixture of 30 sources",
}
COMMON = ("numpy", "tokenizers", "pillow", "psutil")
"""What the work itself needs besides torch, in every environment."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    title: str
    adapter: str
    """Module in adapters/."""
    requirements: tuple[str, ...] = ()
    """Of its environment; without any it runs in the current one."""
    most_ranks: int = 2
    """Ray: its second process could not join it on the machine of the figures."""
    worker: str = ""
    """Part of the command line of a process that prepares samples; otherwise the busiest one."""
    environment: Mapping[str, str] = field(default_factory=dict)


PEERS: dict[str, Peer] = {
    "torch": Peer(
        title="torch DataLoader",
        adapter="torch",
    ),
    "stateful": Peer(
        title="torchdata StatefulDataLoader",
        adapter="stateful",
        requirements=("torchdata==0.11.0",),
    ),
    "nodes": Peer(
        title="torchdata nodes",
        adapter="nodes",
        requirements=("torchdata==0.11.0",),
    ),
    "ray": Peer(
        title="Ray Data",
        adapter="ray_data",
        requirements=("ray[data,train]==2.60.0", "aiohttp"),
        most_ranks=1,
        worker="ray::",
        environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": str(os.nice(0))},
    ),
    "datasets": Peer(
        title="Hugging Face datasets, streaming",
        adapter="hf_datasets",
        requirements=("datasets==5.2.0", "torchdata==0.11.0"),
    ),
    "odb": Peer(
        title="ODB, released package",
        adapter="odb_package",
        requirements=("online-dynamic-batching==0.1.2",),
    ),
    "energon": Peer(
        title="Megatron-Energon",
        adapter="energon",
        requirements=("megatron-energon==7.4.1",),
    ),
    "grain": Peer(
        title="Grain", adapter="grain_data", requirements=("grain==0.2.18", "array-record==0.8.6")
    ),
    "litdata": Peer(
        title="litData",
        adapter="lit_data",
        requirements=("litdata==0.2.76",),
    ),
    "mosaic": Peer(
        title="MosaicML Streaming",
        adapter="mosaic",
        requirements=("mosaicml-streaming==0.13.0", "numpy<2.2", "tokenizers"),
    ),
    "webdataset": Peer(
        title="WebDataset",
        adapter="web_dataset",
        requirements=("webdataset==1.0.2",),
    ),
    "spdl": Peer(
        title="SPDL",
        adapter="spdl_pipeline",
        requirements=("spdl==0.8.0",),
    ),
    "lhotse": Peer(
        title="lhotse, dynamic bucketing",
        adapter="lhotse_bucketing",
        requirements=("lhotse==1.33.0", "urllib3"),
    ),
    "evenstep": Peer(title="evenstep's loader", adapter="evenstep_loader"),
    "service": Peer(title="evenstep's service on processes", adapter="evenstep_service"),
}


def environment_of(name: str) -> Path:
    """The folder of a peer's environment; peers with the same requirements have each their own."""
    return ENVIRONMENTS / name


def python_of(name: str) -> str:
    """The interpreter of a peer's environment.

    Raises:
        SystemExit: the peer is not installed.
    """
    if not PEERS[name].requirements:
        return sys.executable
    python = environment_of(name) / "bin" / "python"
    if not python.exists():
        sys.exit(f"{name} is not installed: python -m benchmarks.peers install {name}")
    return str(python.absolute())
