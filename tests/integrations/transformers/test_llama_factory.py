"""LLaMA-Factory on images: `python -m pytest tests/integrations/transformers/test_llama_factory.py`
in an environment of `pip install llamafactory==0.9.5 transformers==4.57.6 -e '.[test-tools]'`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from script_jobs import run_script

pytest.importorskip("llamafactory", reason="LLaMA-Factory has an environment of its own")

from disk_jobs import (
    COUNT,
    check_once,
    write_checkpoint,
    written_row,
)

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.timeout(1000),
    pytest.mark.usefixtures("on_this_machine_alone"),
]
SCRIPT = Path(__file__).with_name("factory_job.py")
COLUMNS = {
    "formatting": "sharegpt",
    "columns": {"messages": "messages", "images": "images"},
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
    },
}


def chat(number: int, folder: Path) -> dict[str, Any]:
    question, answer, files = written_row(number, folder)
    messages = [
        {"role": "user", "content": "<image>" * len(files) + question},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, "images": files}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_checkpoint(folder / "model")
    rows = [chat(number, folder / "images") for number in range(COUNT)]
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(
        json.dumps({"rows": {"file_name": "rows.json", **COLUMNS}})
    )
    return folder


def options(data: Path, trained: Path, **more: Any) -> dict[str, Any]:
    """What LLaMA-Factory reads from its YAML file."""
    return {
        "model_name_or_path": str(data / "model"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "freeze_vision_tower": False,
        "freeze_multi_modal_projector": False,
        "dataset_dir": str(data),
        "dataset": "rows",
        "template": "qwen2_vl",
        "cutoff_len": 2048,
        "overwrite_cache": True,
        "dataloader_num_workers": 2,
        "output_dir": str(trained),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "num_train_epochs": 1,
        "optim": "sgd",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        **more,
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_row_once_and_the_gradient_of_one_batch(
    tmp_path: Path, data: Path, ranks: int
) -> None:
    check_once(run_script(SCRIPT, ranks, tmp_path, **options(data, tmp_path / "trained")))
