"""The demos of evenstep: `text`, `packing` and `service`. Each is a command of ``evenstep``."""
