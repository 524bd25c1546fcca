"""How do I show it? Tables as text, a picture as a PNG file, a page as HTML.

```
table                 tables of text
advice_text           the advice of `evenstep advise`
picture               the time that ranks wait for each other in steps, drawn
run_record            a run's step log: read, and shown
```
"""

from evenstep.tools.report.picture import StepPanel, plot_steps
from evenstep.tools.report.table import text_table

__all__ = ["StepPanel", "plot_steps", "text_table"]
