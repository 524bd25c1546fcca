"""How do I show it? Tables as text, plots as PNG files, pages as HTML.

```
table                     tables of text
advice_text, advice_page, pool_text  the advice of `evenstep advise`
plan_page                 a loading plan of the service
run_record, run_figures   a run's step log, read, and in figures
run_page, run_svg         the same as a page
run_server                a page of a run that goes on
steps_plot, packing_plot  the time that ranks, or micro-batches, wait for each other
ranks_plot                groups of ranks: which document each rank works on
layout_plot               loaders of a service: their time, processes and memory
picture, svg, plan_svg    figures and drawings; bins, page_style
```
"""

from evenstep.tools.report.steps_plot import StepPanel, plot_steps
from evenstep.tools.report.table import text_table

__all__ = ["StepPanel", "plot_steps", "text_table"]
