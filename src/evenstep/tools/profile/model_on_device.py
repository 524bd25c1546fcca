"""What is measured: the shape of a transformer, and the hardware.

The shape is the numbers that its speed depends on. Hardware goes by name: a calibration of one
device does not apply to another.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from evenstep.cost import TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_one_of


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The fields have the meaning of those of `TransformerCost`."""

    layers: int
    hidden_size: int
    heads: int
    ffn_size: int
    kv_heads: int | None = None
    causal: bool = True
    gated: bool = True

    def __post_init__(self) -> None:
        self.operations  # noqa: B018  (checks the fields)
        if self.hidden_size % (2 * self.heads):
            raise ConfigurationError(
                f"hidden_size={self.hidden_size} over heads={self.heads} must give heads of an "
                "even size, for rotary positions; check both"
            )

    @property
    def operations(self) -> TransformerCost:
        """The model's cost in floating-point operations, which needs no measurement."""
        return TransformerCost(**asdict(self))

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device, and the settings that its speed depends on."""

    kind: str
    """"cpu" or "cuda"."""
    name: str
    threads: int | None = None
    """Threads of PyTorch, on a CPU."""

    def __str__(self) -> str:
        if self.threads is None:
            return self.name
        return f"{self.name}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def synchronize(self) -> None:
        """Waits until all launched work is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize()


def choose_device(wanted: str = "auto") -> Device:
    """The device called `wanted`: cpu, cuda, or auto for CUDA if available.

    Raises:
        ConfigurationError: the name is unknown, or there is no such device.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise ConfigurationError(f"device={wanted!r} must be auto, cpu or cuda")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigurationError("device='cuda', but PyTorch finds no CUDA device; use cpu")
    if available and wanted != "cpu":
        return Device(kind="cuda", name=torch.cuda.get_device_name())
    return Device(kind="cpu", name=_processor(), threads=torch.get_num_threads())


def choose_dtype(wanted: str | None, device: Device) -> str:
    """The name of a dtype: `wanted`, or by default bf16 on a GPU and fp32 on a CPU.

    Raises:
        ConfigurationError: the name is unknown.
    """
    if wanted is None:
        return "bf16" if device.kind == "cuda" else "fp32"
    check_one_of(DTYPES, dtype=wanted)
    return wanted


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*names, platform.processor(), platform.machine()]), "unknown CPU")
