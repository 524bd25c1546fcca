"""Processors that name a video processor, where torchvision is not installed.

transformers 5.24 has video processors for torchvision only: ``Qwen2VLVideoProcessor()`` and its kind
raise ``ImportError``. `ProcessorMixin.__init__` looks the base class of video processors up among
classes that are missing then, too, and fails with ``AttributeError: type object
'VIDEO_PROCESSOR_MAPPING' has no attribute '_extra_content'`` before it looks at the argument. The
rest of such a processor works: `AnyVideoProcessor` skips this one check.
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
