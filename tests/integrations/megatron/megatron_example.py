"""examples/megatron_pretrain.py on the CPU, with the attention of the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import megatron_job  # first: the CPU takes CUDA's place
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import megatron_pretrain

if __name__ == "__main__":
    megatron_pretrain.layers.get_gpt_layer_with_transformer_engine_spec = megatron_job.layer_spec
    megatron_pretrain.tensor_parallel.model_parallel_cuda_manual_seed = torch.manual_seed
    megatron_pretrain.main(**json.loads(sys.argv[1]))
