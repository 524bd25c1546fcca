"""What a group of samples costs, and whether it fits in memory.

The two are kept apart. *Cost* predicts compute and is what gets balanced; a `MemoryLimit` says
what may be collated together at all. A cheap group can still be too big.

A padded group of n samples with longest length m computes n rows of m tokens. A packed group
computes only real tokens, and its documents attend only to themselves, so 10 + 90 tokens attend
10² + 90² = 8,200 units where 50 + 50 attend 5,000.

Everything here is a function of `GroupShapes`, integer columns with one row per group.

```
shapes            `GroupShapes`, and `MemoryLimit`
models            costs of one part: `PaddedTokenCost`, `TransformerCost` and others
vision_language   `VisionLanguageCost`: a language model and a vision tower, balanced apart;
                  `MeasuredCost`: what a run measures, and its ranks agree on
fitting           `fit`: a cost from measured times, also from how long the steps of a run took
of_model          `cost_of`: a cost from a model's configuration
```
"""

from evenstep.cost.fitting import fit as fit
from evenstep.cost.models import UNKNOWN_MODEL as UNKNOWN_MODEL
from evenstep.cost.models import Cost as Cost
from evenstep.cost.models import FittedCost as FittedCost
from evenstep.cost.models import PaddedTokenCost as PaddedTokenCost
from evenstep.cost.models import TokenCost as TokenCost
from evenstep.cost.models import TransformerCost as TransformerCost
from evenstep.cost.of_model import cost_of as cost_of
from evenstep.cost.shapes import GroupShapes as GroupShapes
from evenstep.cost.shapes import MemoryLimit as MemoryLimit
from evenstep.cost.vision_language import MeasuredCost as MeasuredCost
from evenstep.cost.vision_language import VisionLanguageCost as VisionLanguageCost
