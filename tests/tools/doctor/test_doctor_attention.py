"""A GPU on which attention builds a plan for every shape is found, and told of once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from evenstep.tools.doctor import software
from evenstep.tools.doctor.software import attention, plans_each_shape, warn_of_plans

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


class Machine:
    """A GPU whose tensors lie on the CPU."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.tried = 0
        zeros = torch.zeros

        def on_cpu(*size: Any, device: Any, **options: Any) -> torch.Tensor:
            assert device == GPU
            self.tried += 1
            return zeros(*size, **options)

        patch.setattr(torch, "zeros", on_cpu)
        self.torchs_own = torch.nn.functional.scaled_dot_product_attention
        self.has(capability=(9, 0), enabled=True)
        warn_of_plans.cache_clear()

    def has(self, *, capability: tuple[int, int], enabled: bool, kernel: Any = by_cudnn) -> None:
        self._patch.setattr("torch.cuda.get_device_capability", lambda device: capability)
        self._patch.setattr("torch.backends.cuda.cudnn_sdp_enabled", lambda: enabled)
        kernel = kernel or self.torchs_own
        self._patch.setattr("torch.nn.functional.scaled_dot_product_attention", kernel)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    yield Machine(monkeypatch)
    warn_of_plans.cache_clear()


@pytest.mark.parametrize(
    ("capability", "enabled", "kernel", "slow", "tried"),
    [
        ((9, 0), True, by_cudnn, True, 1),
        ((10, 0), True, by_cudnn, True, 1),
        ((9, 0), True, refused, False, 1),
        ((9, 0), True, None, False, 1),  # torch's own, here
        ((9, 0), False, by_cudnn, False, 0),  # cured
        ((8, 0), True, by_cudnn, False, 0),
    ],
)
def test_a_device_is_slow_where_attention_takes_cudnn(
    machine: Machine,
    capability: tuple[int, int],
    enabled: bool,
    kernel: Any,
    slow: bool,
    tried: int,
) -> None:
    machine.has(capability=capability, enabled=enabled, kernel=kernel)
    assert not plans_each_shape(torch.device("cpu"))
    assert plans_each_shape(GPU) == slow
    with torch.no_grad():
        assert plans_each_shape(GPU) == slow
    assert machine.tried == 2 * tried


def test_doctor_finds_the_attention_of_a_usable_gpu_with_the_line_that_cures_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(software, "attention", lambda device: attention(GPU))
    found = {each.check: each for each in software.torch_build()}["attention"]
    assert found.level == "warning"
    assert "builds a plan for every new shape" in found.found
    assert "torch.backends.cuda.enable_cudnn_sdp(False)" in found.remedy
    machine.has(capability=(9, 0), enabled=False)
    assert [each.check for each in software.torch_build()] == ["torch"]


def test_the_first_rank_is_warned_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        warn_of_plans(GPU, 1)
        assert not machine.tried
        warn_of_plans(GPU, 0)
        warn_of_plans(GPU, 0)
    (said,) = caplog.messages
    assert said.endswith(
        "write torch.backends.cuda.enable_cudnn_sdp(False) before you train; see docs/gpu.md"
    )
