"""What a trainer says where the attention of its device builds a plan for every shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evenstep.tools.doctor import software


def notices(
    patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, train: Callable[[], object]
) -> list[str]:
    """Of a training as if its device, a CPU, had such attention."""
    patch.setattr(software, "plans_each_shape", lambda device: device.type == "cpu")
    software.warn_of_plans.cache_clear()
    try:
        train()
    finally:
        software.warn_of_plans.cache_clear()
    return [said for said in caplog.messages if "enable_cudnn_sdp(False)" in said]
