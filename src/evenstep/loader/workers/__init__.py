"""Runs in the worker processes, inside an ordinary torch DataLoader: prepares and measures samples."""
