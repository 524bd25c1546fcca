"""How the samples of a step are balanced: within a micro-batch, between buckets, or both at once."""
