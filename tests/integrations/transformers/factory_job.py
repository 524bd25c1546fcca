"""LLaMA-Factory's fine-tuning by a script in place of its command, and what it trained on.

torchrun --nproc-per-node 2 factory_job.py '{"folder": ..., "stop": 3, "template": "qwen2_vl", ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [
    str(_TESTS / part) for part in ("", "integrations", "integrations/transformers", "scenarios")
]

from disk_jobs import Reporter  # noqa: E402
from llamafactory.train.sft import workflow  # noqa: E402
from llamafactory.train.tuner import run_exp  # noqa: E402

import evenstep  # noqa: E402
from evenstep.integrations import transformers as even  # noqa: E402


def main(folder: str, *, stop: int | None = None, **options: Any) -> None:
    class Telling(workflow.CustomSeq2SeqTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(Reporter(self, folder, stop))

    workflow.CustomSeq2SeqTrainer = even.trainer_class(
        Telling, policy=evenstep.Even(max_tokens=256)
    )
    run_exp(options)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
