"""Attention of context-parallel fragments in the dtypes of a training, and its measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from devices import GPU
from threaded_ranks import whole

from evenstep.cli import main
from evenstep.context_parallel import PreparedSharding, attention
from evenstep.context_parallel.collectives import Collectives
from evenstep.plan.sharding import shard_per_document
from evenstep.tools.profile import load_calibration


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "sdpa"),
        *(pytest.param("cuda", name, marks=GPU) for name in ("sdpa", "flash", "auto")),
    ],
)
def test_attention_and_its_gradients(device: str, backend: str, dtype: torch.dtype) -> None:
    if backend == "flash" and dtype == torch.float32:
        pytest.skip("flash attention takes half precision alone")
    sharding = shard_per_document([300, 20, 170], 1)
    plan = PreparedSharding(sharding, Collectives(), device=torch.device(device), backend=backend)
    torch.manual_seed(0)
    own = torch.from_numpy(sharding.indices(0))
    shapes = [(len(own), heads, 64) for heads in (4, 2, 2, 4)]
    # Rounded once, so that only the kernel's own rounding is left.
    q, k, v, grad = (torch.randn(shape).to(dtype).float() for shape in shapes)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    truth = whole(q, k, v, sharding, 64**-0.5)
    expected = [truth[own], *torch.autograd.grad(truth[own], (q, k, v), grad)]
    there = [x.detach().to(device, dtype).requires_grad_() for x in (q, k, v)]
    out = attention(*(x[own.to(device)] for x in there), plan)
    found = [out, *torch.autograd.grad(out, there, grad.to(device, dtype))]
    near = 1e-4 if dtype == torch.float32 else 3e-2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float().cpu(), other, rtol=near, atol=near)


@pytest.mark.gpu
@GPU[1]
def test_profile_measures_the_device(tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    shape = ("--layers", "3", "--hidden-size", "64", "--heads", "4", "--ffn-size", "96")
    limits = ("--max-length", "256", "--seconds", "60", "--device", "cuda")
    with pytest.raises(SystemExit) as ended:
        main(["profile", *shape, *limits, "--out", str(out)])
    assert ended.value.code == 0
    assert json.loads(out.read_text())["device"]["kind"] == "cuda"
    assert load_calibration(out).per_token > 0
