"""Policies that see a window: one file for each, and `by_name` for commands."""
