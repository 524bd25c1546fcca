"""Python, torch and its attention, the other packages that jobs use, and open files.

PyTorch's attention may cost a tenth of a second for every new shape of a batch. On NVIDIA's Hopper
and on datacenter Blackwell, ``scaled_dot_product_attention`` takes cuDNN first where it is at least
9.15.1, as it is in wheels of torch 2.11. cuDNN builds a plan for each shape that it has not met,
forward and backward, and batches of dynamic lengths seldom repeat one. FlashAttention, which comes
next, builds none.
"""

from __future__ import annotations

import logging
import math
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.tested import TESTED
from evenstep.tools.doctor.finding import Finding

if TYPE_CHECKING:
    import torch


logger = logging.getLogger("evenstep")

_CURE = "torch.backends.cuda.enable_cudnn_sdp(False)"
_FOUND = "scaled_dot_product_attention takes cuDNN, which builds a plan for every new shape"


def plans_each_shape(device: torch.device) -> bool:
    """Whether attention on a device takes cuDNN. Where it may, tries it once, on few tokens."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    may = device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    if not may or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    with suppress(RuntimeError), torch.enable_grad():  # such as a device that is another's alone
        size = (1, 1, 128, 64)
        q = torch.zeros(size, dtype=torch.bfloat16, device=device, requires_grad=True)
        node = scaled_dot_product_attention(q, q, q, is_causal=True).grad_fn
        return node is not None and "Cudnn" in node.name()
    return False


def attention(device: torch.device) -> Iterator[Finding]:
    if plans_each_shape(device):
        remedy = f"write {_CURE} where training begins; see docs/gpu.md"
        yield Finding(check="attention", found=_FOUND, remedy=remedy)


@cache
def warn_of_plans(device: torch.device, rank: int) -> None:
    """Warns, once and on the first rank, of a device on which attention builds plans."""
    if not rank and plans_each_shape(device):
        logger.warning("%s: write %s before you train; see docs/gpu.md", _FOUND, _CURE)


_NEEDED = ("python", "torch", "numpy")
"""What every job uses."""


def installed() -> dict[str, str]:
    """Releases by name, of those that evenstep was tested with."""
    found = {"python": platform.python_version()}
    for name in TESTED.keys() - found.keys():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {name: found[name] for name in TESTED if name in found}


def releases() -> Iterator[Finding]:
    yield from outside_the_table(installed())


def outside_the_table(found: Mapping[str, str]) -> Iterator[Finding]:
    """
    Args:
        found: releases by name.
    """
    fine = []
    for name, release in found.items():
        tested = TESTED[name]
        side = tested.side(release)
        if not side:
            fine.append(f"{name} {release}")
            continue
        yield Finding(
            check=name,
            found=f"{release} is {side} than what was tested: {tested}",
            remedy=f"install {name} {tested.oldest if side == 'older' else tested.newest}; or "
            "compare the losses of a short run with those of a tested release",
            breaks=side == "older" and name in _NEEDED,
        )
    yield Finding(check="releases", found=f"tested: {', '.join(fine) or 'none'}")


def torch_build() -> Iterator[Finding]:
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    built = torch.version.cuda or torch.version.hip
    found, remedy = f"{torch.__version__}, {'with' if usable else 'without'} a GPU", ""
    if gpus() and built is None:
        found += ": this machine has one, and the build has no CUDA"
        remedy = "install the CUDA build of torch: pytorch.org"
    elif gpus() and not usable:
        found += f": its CUDA {built} does not work here {' '.join(str(w.message) for w in said)}"
        remedy = "install a build for this driver, or a newer driver: nvidia-smi shows its CUDA"
    yield Finding(check="torch", found=found, remedy=remedy)
    if usable:
        yield from attention(torch.device("cuda"))


def gpus(folder: str = "/dev") -> list[str]:
    """NVIDIA's, as the system shows them."""
    return sorted(path.name for path in Path(folder).glob("nvidia[0-9]*"))


try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

_FEW_FILES = 128
"""Below it, a rank with 16 workers does not start."""
_SOME_FILES = 1024
"""Below it, windows of some thousand samples do not fit: each slab that holds some is a file."""


def open_files() -> Iterator[Finding]:
    if resource is None:
        return
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    found, remedy = f"{soft:,} may be open (ulimit -n)", ""
    if soft < _SOME_FILES:
        found += ": too few for many workers or large windows"
        remedy = f"ulimit -n {min(hard, 65536)}, before the job starts"
        if hard < _SOME_FILES:
            remedy = f"have the hard limit of {hard:,} raised (ulimit -Hn), then the soft one"
    yield Finding(check="open files", found=found, remedy=remedy, breaks=soft < _FEW_FILES)
