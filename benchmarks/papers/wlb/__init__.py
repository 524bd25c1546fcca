"""The WLB-LLM paper: `table2` writes docs/wlb-table2.md, and `figures` docs/wlb-figures.md."""
