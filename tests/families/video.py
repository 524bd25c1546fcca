"""Processors that name a video processor, where torchvision is not installed.

transformers 5.24 has video processors for torchvision only: ``Qwen2VLVideoProcessor()`` raises
``ImportError``, as do all others. `ProcessorMixin.__init__` looks for their base class among names
that are missing then, too, and fails before it sees the argument: ``AttributeError: type object
'VIDEO_PROCESSOR_MAPPING' has no attribute '_extra_content'``. All else of such a processor works,
so `AnyVideoProcessor` skips this one check.
"""

from __future__ import annotations

from typing import Any

from transformers.video_processing_utils import BaseVideoProcessor


class AnyVideoProcessor:
    """A mixin before a processor's class: its video processor is taken as it is."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor":
            return BaseVideoProcessor
        return super().check_argument_for_proper_class(argument_name, argument)
