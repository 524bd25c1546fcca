"""Nothing here is tested without transformers and accelerate."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") and find_spec("accelerate") else ["test_*"]
