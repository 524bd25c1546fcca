"""`decodings`: a fixture that sees which images PIL decodes."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import ImageFile


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The size of each image that is decoded."""
    seen: list[Any] = []
    load = ImageFile.ImageFile.load

    def watched(self: Any) -> Any:
        if self.tile:
            seen.append(self.size)
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", watched)
    return seen
