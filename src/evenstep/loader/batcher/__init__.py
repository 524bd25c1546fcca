"""Runs in the batcher process (or thread): buffers samples, drives the protocol, plans and collates."""
