"""Tests of a GPU are marked, and skipped where there is none."""

from __future__ import annotations

import pytest
import torch

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
