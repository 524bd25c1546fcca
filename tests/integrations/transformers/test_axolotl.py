"""Axolotl on images: `python -m pytest tests/integrations/transformers/test_axolotl.py` in an
environment of `pip install axolotl==0.19.0 -e '.[test-tools]'`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from script_jobs import run_script

if find_spec("axolotl") is None:  # importing it takes seconds, and changes the process
    pytest.skip("Axolotl has an environment of its own", allow_module_level=True)

from disk_jobs import (
    COUNT,
    check_once,
    write_checkpoint,
    written_row,
)

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1000)]
SCRIPT = Path(__file__).with_name("axolotl_job.py")


def chat(number: int, folder: Path) -> dict[str, Any]:
    """A row whose messages name its images. Every part has all keys, for the table's columns."""
    question, answer, files = written_row(number, folder)
    content = [{"type": "image", "path": file, "text": None} for file in files]
    content.append({"type": "text", "path": None, "text": question})
    said = [{"type": "text", "path": None, "text": answer}]
    return {
        "messages": [{"role": "user", "content": content}, {"role": "assistant", "content": said}]
    }


def chat_with_column(number: int, folder: Path) -> dict[str, Any]:
    """A row whose images are a column: their pixels are made late."""
    question, answer, files = written_row(number, folder)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "images": files[:1] or None}


ROWS = {"messages": chat, "column": chat_with_column}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_checkpoint(folder / "model")
    for name, row in ROWS.items():
        lines = [json.dumps(row(number, folder / "images")) for number in range(COUNT)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def on_the_cpu(on_this_machine_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def config(data: Path, trained: Path, kind: str, **more: Any) -> str:
    """The path of a configuration. YAML includes JSON."""
    options = {
        "base_model": str(data / "model"),
        "processor_type": "AutoProcessor",
        "chat_template": "qwen2_vl",
        "skip_prepare_dataset": True,
        "remove_unused_columns": False,
        "sample_packing": False,
        "datasets": [
            {
                "path": str(data / f"{kind}.jsonl"),
                "ds_type": "json",
                "type": "chat_template",
                "field_messages": "messages",
            }
        ],
        "plugins": ["axolotl_job.EvenPlugin"],
        "seed": 42,
        "val_set_size": 0,
        "sequence_len": 2048,
        "output_dir": str(trained),
        "gradient_accumulation_steps": 2,
        "micro_batch_size": 1,
        "num_epochs": 1,
        "optimizer": "sgd",
        "lr_scheduler": "constant",
        "learning_rate": 1e-13,  # 0 is refused
        "max_grad_norm": 0.0,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "flash_attention": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "dataloader_num_workers": 2,
        "dataset_num_proc": 1,
        "use_wandb": False,
        **more,
    }
    path = trained.with_suffix(".yaml")
    path.write_text(json.dumps(options))
    return str(path)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_row_once_and_the_gradient_of_one_batch(
    tmp_path: Path, data: Path, ranks: int, kind: str
) -> None:
    trained = config(data, tmp_path / "trained", kind)
    told = run_script(SCRIPT, ranks, tmp_path, config=trained)
    check_once(told)
    assert told[0]["late"] == (kind == "column")
