"""What does a policy make of these lengths? Policies run over lengths alone, to predict what they
gain.

```
lengths          recorded lengths from files; distributions: named synthetic ones
run              an epoch of a policy: every rank is a SimulatedRank (rank); its result
yardsticks       batches formed from all lengths, to compare policies with
```
"""

from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.lengths import load_lengths
from evenstep.tools.simulate.result import SimulationResult
from evenstep.tools.simulate.run import deal, simulate

__all__ = [
    "DISTRIBUTIONS",
    "SimulationResult",
    "deal",
    "load_lengths",
    "sample_lengths",
    "simulate",
]
