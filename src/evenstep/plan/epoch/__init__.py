"""Which samples of an epoch are left, for any number of ranks: `stream`; for one rank: `remaining`."""
