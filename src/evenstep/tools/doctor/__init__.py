"""What would bite a job on this machine, and the remedy.

```
finding      one result: what was found, and what to do about it
limits       files, tasks, memory and processors that this process may use
software     Python, torch and other packages
attention    whether PyTorch's attention is slow where shapes vary; trainers warn of it, too
trial        a small job of two ranks: it fails where the system forbids what all jobs do
examination  all of these
```

There is no check for what the trial job meets itself: shared memory, folders, and the network of
one host.
"""

from __future__ import annotations

from evenstep.tools.doctor.examination import examine
from evenstep.tools.doctor.finding import Examination, Finding

__all__ = ["Examination", "Finding", "examine"]
