from __future__ import annotations

import pytest
import torch

from evenstep.errors import SampleError
from evenstep.tools.out_of_memory import ran_out_of_memory
from evenstep.tools.tune.diagnosis import diagnose, too_small

TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank1]: {error}
[rank0]: evenstep.errors.PeerError: rank 1 left the epoch
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode   : {code} (pid: 99)
"""


@pytest.mark.parametrize(
    ("output", "code", "outcome", "detail"),
    [
        (
            TORCHRUN.format(error="torch.OutOfMemoryError: CUDA out of memory. Tried", code=1),
            1,
            "out of memory",
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried",
        ),
        (TORCHRUN.format(error="", code=-9), 1, "out of memory", "exitcode : -9 (pid: 99)"),
        (TORCHRUN.format(error="KeyError: 'text'", code=1), 1, "failed", "KeyError: 'text'"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when", 1, "out of memory", "CUBLAS"),
        ("MemoryError", 1, "out of memory", "MemoryError"),
        ("", 137, "out of memory", "SIGKILL"),
        ("NCCL waits; rank 3: CUDA out of memory.", None, "out of memory", "rank 3"),
        ("", None, "hung", ""),
        ("", -15, "failed", "killed by SIGTERM"),
        ("nothing said", 2, "failed", "exit code 2"),
        ("a MemoryErrors counter: 0", 1, "failed", "exit code 1"),
    ],
)
def test_output_and_exit_code_determine_what_happened(
    output: str, code: int | None, outcome: str, detail: str
) -> None:
    found, reason = diagnose(output, code)
    assert found == outcome
    assert detail in reason


def test_a_sample_over_the_limit_is_named_without_what_comes_before_it() -> None:
    text = "[rank0]: evenstep.errors.SampleError: sample 12 has 5,000 tokens, over max_tokens=4,096"
    expected = (5000, 4096, "sample 12 has 5,000 tokens, over max_tokens=4,096")
    assert too_small(f"begin\n{text}; truncate it\nCUDA out of memory") == expected
    assert diagnose(text, 1) == ("too small", expected[2])
    assert too_small("sample 12 has 5,000 tokens") is None


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("shapes differ"), False),
        (SampleError("sample 3: MemoryErrors"), False),
    ],
)
def test_exceptions_that_mean_that_memory_ran_out(error: Exception, memory: bool) -> None:
    assert ran_out_of_memory(error) is memory
