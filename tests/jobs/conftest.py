"""Nothing here is tested without transformers and accelerate."""

from __future__ import annotations

from importlib.util import find_spec

needed = ("transformers", "accelerate", "PIL")
collect_ignore_glob = [] if all(map(find_spec, needed)) else ["test_*"]
