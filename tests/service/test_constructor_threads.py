"""A constructor's process collates in one thread: OpenMP's would spin between small batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

PROGRAM = """
import os, pickle, sys
from pathlib import Path
from service_world import job_of, sources, tokens_of_row
import torch
from evenstep.service.backends.ray.actors import RoleActor
from evenstep.service.remote.role_makers import make_constructor
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.transport.endpoint import Keys

class Unused:
    def using(self, **_):
        return self

torch.set_num_threads(4)  # as many as a larger machine would choose
job = job_of(Path(sys.argv[1]))
layout = SourceLayout.of(job.names, 1)
import ray
ray.get = lambda reference: reference  # what Ray would hold
ray.util.get_node_ip_address = lambda: "127.0.0.1"
given = pickle.dumps([pickle.dumps(job), (layout, [Unused()], Unused(), [0])])
made = RoleActor(make_constructor, given, [], Keys.new(), 1).location()
assert not isinstance(made, Exception), made
before = len(os.listdir("/proc/self/task"))
torch.cat([torch.arange(1 << 20) for _ in range(8)])
torch.rand(1 << 22).exp()
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_constructor_starts_no_threads_to_collate(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True, timeout=120)
    assert done.stdout.split() == [b"0"]
