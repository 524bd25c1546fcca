"""LLaMA-Factory's fine-tuning by a script in place of its command, and what it trained on."""

from __future__ import annotations

import json
import sys
from typing import Any

from disk_jobs import Reporter
from llamafactory.train.sft import workflow
from llamafactory.train.tuner import run_exp

import evenstep
from evenstep.integrations import transformers as even


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
