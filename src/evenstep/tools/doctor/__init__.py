"""What would bite a job on this machine, and the remedy.

```
finding      one result: what was found, and what to do about it
limits       files, tasks, memory and processors that this process may use
cgroup       the limits of a container
folders      /dev/shm and TMPDIR
network      loopback, the host's name, interfaces
software     Python, torch and other packages, the encoding of text
attention    whether PyTorch's attention is slow where shapes vary; trainers warn of it, too
trial        a small job of two ranks, for what nobody thought of
examination  all of these
```

Each check does what a job does, where it can: it makes a semaphore, connects, resolves a name.
Clocks are not checked: waits are measured by the monotonic clock, and hosts whose clocks differ
take nothing from each other's (``tests/scenarios/test_clocks.py``). Nor is OMP_NUM_THREADS: the
loader's workers compute with one thread.
"""

from __future__ import annotations

from evenstep.tools.doctor.examination import Examination, examine
from evenstep.tools.doctor.finding import Finding

__all__ = ["Examination", "Finding", "examine"]
