"""Back ends of attention over a rank's fragments, one file each.

```
choice    `Kernel`, what a back end is; and which one runs
layout    where the keys lie that a rank needs; `varlen_arguments`, for one call of a kernel
flash     FlashAttention's variable-length kernel, one launch for all fragments (CUDA)
sdpa      PyTorch's scaled dot-product attention, block by block: the reference, on any device
```
"""

from evenstep.context_parallel.kernels.choice import (
    BACKENDS,
    Kernel,
    check_backend,
    kernel_of,
    pick_backend,
)
from evenstep.context_parallel.kernels.layout import varlen_arguments

__all__ = ["BACKENDS", "Kernel", "check_backend", "kernel_of", "pick_backend", "varlen_arguments"]
