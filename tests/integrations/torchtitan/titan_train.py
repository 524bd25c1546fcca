"""torchtitan's own command, on the CPU.

torchrun titan_train.py --module ... --config ...
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import titan_on_cpu  # noqa: F401  first
from torchtitan.train import main

if __name__ == "__main__":
    main()
