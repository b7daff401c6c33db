"""What a policy does, as numbers (`tables`) and as a picture (`preview`)."""

from deepaa.report.preview import preview_grid
from deepaa.report.tables import layer_table, use_table

__all__ = ["layer_table", "preview_grid", "use_table"]
