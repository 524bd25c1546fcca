"""Kills a process of the cluster that hangs, and so does nothing that Ray asks of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evenstep.service.ray.road import import_ray


def kill_process(about: Mapping[str, Any]) -> None:
    """Returns when it is killed, or its node is gone.

    Args:
        about: its `process` and `host`.
    """
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and node["NodeManagerHostname"] == about["host"]
    ]
    if nodes:
        there = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(_kill).options(scheduling_strategy=there)
        with suppress(ray.exceptions.RayError):
            ray.get(task.remote(about["process"]))


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
