"""Refuses trainers that iterate a loader without its integration, and says which line to write.

Such a trainer would train without an error, but with unscaled losses, with updates that end at
other steps, and with checkpoints that do not hold the position in the data.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from evenstep.errors import ConfigurationError

_LIGHTNING = (
    "from evenstep.integrations import lightning as even; even.fit(trainer, module, loader); a "
    "train_dataloader, and a list or dictionary of loaders, has even.loader(loader)"
)
_LINES = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": (
        "from evenstep.integrations import transformers as even; trainer = even.install(trainer)"
    ),
}
_ACCELERATE = (
    "from evenstep.integrations import accelerate as even; "
    "model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)"
)


def refuse_trainers(frame: FrameType | None) -> None:
    """
    Args:
        frame: of the code that iterates a loader, or asks for its length.

    Raises:
        ConfigurationError: it is a trainer's own.
    """
    module = frame.f_globals.get("__name__", "") if frame is not None else ""
    trainer = module.partition(".")[0]
    if trainer in _LINES:
        raise ConfigurationError(
            f"{trainer} was given an evenstep.DataLoader as it is. To evaluate, give it torch's "
            "DataLoader, as evenstep's repeats samples where a rank has none left. To train, where "
            f"it would not scale its losses, write: {_LINES[trainer]}"
        )


def check_caller(frame: FrameType | None) -> None:
    """`refuse_trainers` for code that iterates a loader, and a warning where an Accelerator is in
    use."""
    refuse_trainers(frame)
    # Accelerate returns a loader that is not torch's unchanged, and the user's code iterates it.
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.is_initialized():
        warnings.warn(
            "an Accelerator is in use, and this evenstep.DataLoader was not prepared for it: it "
            f"would miss the end of short updates, devices and checkpoints; write: {_ACCELERATE}. "
            "A loop that does all of it itself iterates loader.steps()",
            stacklevel=3,
        )
