"""The ODB paper's tables: `tables` writes docs/odb-tables.md from the figures in `paper`."""
