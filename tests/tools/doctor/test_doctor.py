"""`evenstep doctor` in environments that bite, each made for real: the finding, and the bite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evenstep.tools.doctor import software
from evenstep.tools.doctor.software import plans_each_shape

DOCTOR = ("-m", "evenstep", "doctor", "--json")
CLEAN = ("TMPDIR", "RAY_TMPDIR", "GLOO_SOCKET_IFNAME", "MASTER_ADDR")


def tell(shell: str, *python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs Python after commands of a shell, which may change its environment."""
    own = {name: value for name, value in os.environ.items() if name not in CLEAN}
    return subprocess.run(
        ["sh", "-c", f'{shell} exec "$0" "$@"', sys.executable, *python],
        env={**own, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.mark.slow
def test_a_sound_machine_runs_the_trial_job() -> None:
    ran = tell("", *DOCTOR)
    assert ran.returncode == 0, ran.stdout
    told = json.loads(ran.stdout)
    assert not told["breaks"]
    assert told["releases"].keys() >= {"python", "torch", "numpy"}
    trial = next(each for each in told["findings"] if each["check"] == "trial job")
    assert trial["found"].startswith("two ranks trained in ")


LIMITS = """
import json, resource
from evenstep.tools.doctor import software
told, most = [], resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for limit in (100, 300, 2000):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    told += software.open_files()
print(json.dumps([[each.level, each.found, each.remedy] for each in told]))
"""


def test_few_open_files_are_found() -> None:
    ran = tell("", "-c", LIMITS)
    assert ran.returncode == 0, ran.stderr
    files = json.loads(ran.stdout)
    assert [level for level, *_ in files] == ["breaks", "warning", "ok"]
    for limit, (level, found, remedy) in zip((100, 300, 2000), files):
        assert f"{limit:,} may be open" in found
        assert bool(remedy) == ("ulimit -n" in remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("name", "release", "level"),
    [
        ("torch", "2.4.1", "breaks"),
        ("torch", "2.13.0+cu130", "ok"),
        ("torch", "99.0", "warning"),
        ("numpy", "1.25.2", "breaks"),
        ("python", "3.99.0", "warning"),
        ("trl", "0.1", "warning"),
        ("ray", "99.1.0", "warning"),
    ],
)
def test_releases_outside_the_table_are_found(name: str, release: str, level: str) -> None:
    found: dict[str, Any] = {
        each.check: each.level for each in software.outside_the_table({name: release})
    }
    assert found.get(name, "ok") == level


def test_a_gpu_that_torch_was_not_built_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("nvidia0", "nvidiactl", "null"):
        (tmp_path / name).touch()
    there = software.gpus(str(tmp_path))
    assert there == ["nvidia0"]
    monkeypatch.setattr(software, "gpus", lambda: there)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (found,) = software.torch_build()
    assert (found.check, found.level) == ("torch", "warning")
    assert "the build has no CUDA" in found.found
    assert "CUDA build" in found.remedy


# Attention that builds a plan for every shape


GPU = torch.device("cuda", 0)


class ScaledDotProductCudnnAttention(torch.autograd.Function):
    """What torch calls the node of cuDNN's attention; this one runs anywhere."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return v.clone()


def by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
    return ScaledDotProductCudnnAttention.apply(q, k, v)


def refused(*_: Any, **options: Any) -> torch.Tensor:
    raise RuntimeError("No available kernel")


@pytest.mark.parametrize(
    ("capability", "enabled", "kernel", "slow"),
    [
        ((9, 0), True, by_cudnn, True),
        ((10, 0), True, by_cudnn, True),
        ((9, 0), True, refused, False),
        ((9, 0), True, None, False),  # torch's own, here
        ((9, 0), False, by_cudnn, False),  # cured
        ((8, 0), True, by_cudnn, False),
    ],
)
def test_a_device_is_slow_where_attention_takes_cudnn(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    enabled: bool,
    kernel: Any,
    slow: bool,
) -> None:
    zeros = torch.zeros
    monkeypatch.setattr("torch.zeros", lambda *size, device, **given: zeros(*size, **given))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    monkeypatch.setattr("torch.backends.cuda.cudnn_sdp_enabled", lambda: enabled)
    if kernel is not None:
        monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", kernel)
    assert not plans_each_shape(torch.device("cpu"))
    assert plans_each_shape(GPU) == slow
    with torch.no_grad():
        assert plans_each_shape(GPU) == slow
