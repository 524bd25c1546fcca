"""Axolotl's `axolotl train`, with a plugin, and what it trained on."""

from __future__ import annotations

import json
import sys
from typing import Any

from axolotl.cli.train import do_cli
from axolotl.integrations.base import BasePlugin
from axolotl.loaders.model import ModelLoader
from disk_jobs import Reporter

import evenstep
from evenstep.integrations import transformers as even

JOB = json.loads(sys.argv[1])
_their_device_map = ModelLoader._set_device_map_config


def on_the_cpu(loader: Any) -> None:
    """Axolotl names a GPU for each of several processes, and there is none."""
    _their_device_map(loader)
    loader.model_kwargs["device_map"] = "cpu"


class EvenPlugin(BasePlugin):
    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        trainer.args.max_steps = cfg.max_steps or -1
        if cfg.warmup_steps is None:
            trainer.args.warmup_steps = 0.03 if cfg.warmup_ratio is None else cfg.warmup_ratio
        even.install(trainer, policy=evenstep.Even(max_tokens=256))
        trainer.add_callback(Reporter(trainer, JOB["folder"], JOB.get("stop")))


if __name__ == "__main__":
    ModelLoader._set_device_map_config = on_the_cpu
    do_cli(JOB["config"])
