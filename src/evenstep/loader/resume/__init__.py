"""Runs in the trainer process: which samples come in which order, and where to resume."""
