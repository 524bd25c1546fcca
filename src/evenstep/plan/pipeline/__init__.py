"""Pipeline schedules, and the order of micro-batches that suits them."""
