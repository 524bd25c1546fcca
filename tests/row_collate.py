"""A collate function that makes tokens and pixels of raw rows, small and without a processor."""

from __future__ import annotations

from typing import Any

import torch


class Collate:
    """Rows (text, images) -> tokens, labels and one patch of pixels for each image."""

    def __init__(self, *, side: str = "right", multiple: int = 1, pad: int = 7) -> None:
        self.side, self.multiple, self.pad = side, multiple, pad

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = [[ord(letter) for letter in row.pop("text")] for row in rows]
        longest = max(map(len, tokens))
        width = -(-longest // self.multiple) * self.multiple
        batch: dict[str, Any] = {
            "input_ids": self.padded(tokens, width, self.pad),
            "attention_mask": self.padded([[1] * len(t) for t in tokens], width, 0),
            "labels": self.padded([[-100, *t[1:]] for t in tokens], width, -100),
            "token_type_ids": self.padded([[2] * len(t) for t in tokens], width, 3),
            "names": ["x"] * len(rows),
        }
        images = [[image, image + 1] for row in rows for image in row["images"]]
        if images:
            batch["pixel_values"] = torch.tensor(images, dtype=torch.float32)
            batch["image_grid_thw"] = torch.tensor([[1, 1, 1]] * len(images))
        return batch

    def padded(self, rows: list[list[int]], width: int, value: int) -> torch.Tensor:
        filled = []
        for row in rows:
            rest = [value] * (width - len(row))
            filled.append([*row, *rest] if self.side == "right" else [*rest, *row])
        return torch.tensor(filled)


def few_rows() -> list[dict[str, Any]]:
    return [
        {"text": "abc", "images": [1, 2]},
        {"text": "defghij", "images": []},
        {"text": "kl", "images": [3]},
    ]
