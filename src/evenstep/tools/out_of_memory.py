"""Recognises that memory ran out, and frees what a failed attempt still holds.

Running out of memory shows in many ways: torch's exception, errors of CUDA libraries, the operating
system's SIGKILL, or a launcher's report of it.
"""

from __future__ import annotations

import gc
import re

import torch

from evenstep.errors import EvenstepError

RAISED = re.compile(r"OutOfMemoryError|(CUDA|HIP|XPU) out of memory|CUDA error: out of memory")
"""Printed by a process that ran out of memory, even if it caught the exception."""
DIED = re.compile(
    RAISED.pattern + r"|^(\[rank\d+\]: ?)?MemoryError\b"
    r"|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    # torchrun's report of a rank that was killed, and evenstep's of a worker.
    r"|Signal 9 \(SIGKILL\)|exitcode\s*:\s*-9\b|was killed by SIGKILL",
    re.MULTILINE,
)
"""Printed by a process that died, if memory was the reason."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of this process means that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Libraries that cannot allocate raise plain RuntimeErrors.
    return not isinstance(error, EvenstepError) and bool(DIED.search(str(error)))


def free_memory() -> None:
    """Frees the tensors of a failed attempt. Call it outside the exception handler: inside, the
    exception still holds the frames, and these hold the tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
