"""What each role of the service loads: torch in constructors alone, Ray only on Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from service_world import write_parquet

HEAVY = ("torch", "ray", "pandas", "scipy", "matplotlib", "rich", "typer", "transformers")
TELL = f"\nprint(*[name for name in {HEAVY} if name in sys.modules])\n"


WITHOUT_TORCH = """
    batch.measure data.source mixture service.startup service.status_http service.job.job
    service.source_loader.source_loader service.planner.stored_planner service.client.joining
    service.registry.registry service.remote.role_makers service.backends.local
    service.backends.processes.process_service service.backends.processes.loader_main
    service.backends.ray.launcher service.backends.ray.actors
"""


SETUP = """
import pickle
import numpy as np
import evenstep.service as es

def tokens(row):
    return {"input_ids": np.arange(row["length"]), "labels": [-100] + [1] * (row["length"] - 1)}

def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").balance("greedy").plan()

def job_of(**options):
    return es.Job(
        sources=[es.Source("a", PATH, transform=tokens)],
        mesh=es.Mesh(DP=2), strategy=strategy, max_tokens=256, **options,
    )
"""


WORK = """
for collate in ("pack", "pad", list):
    pickle.loads(pickle.dumps(job_of(collate=collate))).measure

from evenstep.service.job.source_layout import loader_tasks

job = job_of()
service = es.start(job, backend="local")
(task,), (loader,) = loader_tasks(service.plan(0), es.SourceLayout.of("a", 1)), service._loaders
loader._buffers["a"].fill_chunk()
loader.stage(task)
assert loader.fetch(0, 0).samples and loader.fetch(0, 1).samples
"""


def test_loaders_and_the_planner_work_without_torch_and_constructors_load_it(
    tmp_path: Path,
) -> None:
    """And jobs are built, sent and received without it."""
    path = write_parquet(tmp_path / "a.parquet", [{"length": 3 + k % 5} for k in range(40)])
    imports = "".join(f"import evenstep.{module}\n" for module in WITHOUT_TORCH.split())
    code = "import sys\n" + imports + TELL + SETUP.replace("PATH", repr(str(path))) + WORK + TELL
    code += "next(service.client(0))" + TELL
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["", "", "torch"], ran.stderr
