"""Back ends of attention over fragments, one file each."""

from evenstep.context_parallel.kernels.choice import (
    BACKENDS,
    check_backend,
    kernel_of,
    pick_backend,
)
from evenstep.context_parallel.kernels.kernel import Kernel

__all__ = ["BACKENDS", "Kernel", "check_backend", "kernel_of", "pick_backend"]
