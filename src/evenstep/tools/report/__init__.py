"""What people look at: tables as text, pictures as files."""

from evenstep.tools.report.steps_plot import StepPanel, plot_steps
from evenstep.tools.report.table import text_table

__all__ = ["StepPanel", "plot_steps", "text_table"]
