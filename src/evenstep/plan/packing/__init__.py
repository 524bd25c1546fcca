"""Documents to packed micro-batches of equal work (WLB-LLM, sections 3 and 4, and past it)."""
