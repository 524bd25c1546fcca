"""How do I show it? Tables as text, plots as PNG files, pages as HTML.

```
table                     tables of text
page                      the frame and the parts of an HTML page
advice_text, advice_page  the advice of `evenstep advise`
plan_page                 a loading plan of the service
run_record, run_page      a run's step log: read, and shown
picture                   the frame of a plot
steps_plot, packing_plot  the time that ranks, or micro-batches, wait for each other
layout_plot               loaders of a service: their time, processes and memory
```
"""

from evenstep.tools.report.steps_plot import StepPanel, plot_steps
from evenstep.tools.report.table import text_table

__all__ = ["StepPanel", "plot_steps", "text_table"]
