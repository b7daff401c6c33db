"""Reports of policies, searches and trainings: tables, then figures, then pages.

Here belongs what a person looks at, in a file or in a terminal. Nothing is computed here that a
policy or a run does not say.
"""

from deepaa.report.accuracy_tables import Results
from deepaa.report.comparison import Comparison, Entry, compare_policies, load_entries
from deepaa.report.figures import plot_comparison, plot_operations
from deepaa.report.load import Subject, read_subject, stamp
from deepaa.report.page import (
    GENERATOR,
    Options,
    comparison_page,
    make_figures,
    make_page,
    originals_of,
)
from deepaa.report.pictures import Originals, comparison_grid, preview_grid
from deepaa.report.policy_tables import as_dict, operation_table, policy_table
from deepaa.report.save import check_formats, figure_bytes, parse_formats, save_figures
from deepaa.report.terminal import Renderable, comparison_lines, policy_lines
from deepaa.report.wording import plural

__all__ = [
    "GENERATOR",
    "Comparison",
    "Entry",
    "Options",
    "Originals",
    "Renderable",
    "Results",
    "Subject",
    "as_dict",
    "check_formats",
    "compare_policies",
    "comparison_grid",
    "comparison_lines",
    "comparison_page",
    "figure_bytes",
    "load_entries",
    "make_figures",
    "make_page",
    "operation_table",
    "originals_of",
    "parse_formats",
    "plot_comparison",
    "plot_operations",
    "plural",
    "policy_lines",
    "policy_table",
    "preview_grid",
    "read_subject",
    "save_figures",
    "stamp",
]
