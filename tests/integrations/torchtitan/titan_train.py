"""torchtitan's own command, on the CPU."""

from __future__ import annotations

import titan_on_cpu  # noqa: F401  first
from torchtitan.train import main

if __name__ == "__main__":
    main()
