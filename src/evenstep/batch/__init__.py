"""From samples to batches: how a sample is measured, and how a group of samples becomes tensors.

    labels          which labels are supervised
    count_media     images, patches and their pairs, of a sample; add a family of vision models
                    here, in `media`, in `images/rules` and, for its cost, in `cost/of_model`
    trim            `Trim`: cuts off padding that samples come with
    cut             `cut`: a sample's first tokens, or a piece of it; `Fitting`: what becomes of one
                    that is too long
    measure         `Measure`: length, supervised tokens and media of a sample
    columns         a group by field, as both collators take it
    media           images, videos and audio of a group, joined
    pad             `PadCollator`: a group as padded rows; `DefaultCollator`
    pack            `PackCollator`: a group as one row of documents, which lie as `RowLayout` says
    formats/        a packed batch in the form that each training framework takes
    joining         `unbatch`: a batch of one sample, as that sample; whether such samples, joined,
                    make the batch that a collate function makes of rows
    prepare         `PreparingCollator`: a collate function that prepares, run on each sample alone
    images/         images of a sample, made once its group is known
    blank           `Blank`: the smallest image, for groups without one
    smallest_media  the smallest blank, of a processor or of a few samples
    check           whether a collated batch is what was planned
    loss_scale      the factors that make averaged gradients those of one big batch: of the loader's
                    `batcher/batch_assembly`, and the service's `constructor/data_constructor`
    step_info       `StepInfo`: what a step reports about itself; `RankLoads`: what each rank
                    computes before it waits for the others
    composition     `Composition`: how like random batches the steps of a run are

Each name is imported on first use: samples are measured in processes that do not need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Now, as the module has the name of its function, and would replace it when imported later.
from evenstep.batch.loss_scale import LOSS_SCALING as LOSS_SCALING
from evenstep.batch.loss_scale import loss_scale as loss_scale
from evenstep.batch.loss_scale import shard_loss_scale as shard_loss_scale
from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.batch.check import check_packed as check_packed
    from evenstep.batch.check import check_supervised as check_supervised
    from evenstep.batch.composition import Composition as Composition
    from evenstep.batch.count_media import patches_of as patches_of
    from evenstep.batch.count_media import patches_of_each as patches_of_each
    from evenstep.batch.formats import attention_mask as attention_mask
    from evenstep.batch.formats import block_mask as block_mask
    from evenstep.batch.formats import to_hugging_face as to_hugging_face
    from evenstep.batch.formats import to_megatron as to_megatron
    from evenstep.batch.formats import to_torchtitan as to_torchtitan
    from evenstep.batch.joining import unbatch as unbatch
    from evenstep.batch.measure import Measure as Measure
    from evenstep.batch.measure import length_of as length_of
    from evenstep.batch.measure import supervised_of as supervised_of
    from evenstep.batch.pack import PackCollator as PackCollator
    from evenstep.batch.pad import PadCollator as PadCollator
    from evenstep.batch.prepare import PreparingCollator as PreparingCollator
    from evenstep.batch.step_info import STEP_KEY as STEP_KEY
    from evenstep.batch.step_info import StepInfo as StepInfo
    from evenstep.batch.step_info import attach_step as attach_step
    from evenstep.batch.step_info import pop_step as pop_step
    from evenstep.protocol.receipts import StepTotals as StepTotals

__getattr__, __dir__ = lazy_names(__name__, "LOSS_SCALING", "loss_scale", "shard_loss_scale")
