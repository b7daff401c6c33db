"""Reports of policies, searches and trainings: tables, then figures, then pages.

Here belongs what a person looks at, in a file or in a terminal. Nothing is computed here that a
policy or a run does not say.
"""

from deepaa.report.comparison import (
    Comparison,
    Entry,
    compare_policies,
    comparison_grid,
    comparison_lines,
    load_entries,
    plot_comparison,
)
from deepaa.report.drawing import check_formats, figure_bytes, parse_formats, save_figures
from deepaa.report.figures import plot_operations
from deepaa.report.page import (
    GENERATOR,
    Options,
    comparison_page,
    make_figures,
    make_page,
    originals_of,
)
from deepaa.report.pictures import Originals, preview_grid
from deepaa.report.policy_tables import (
    Renderable,
    as_dict,
    operation_table,
    plural,
    policy_lines,
    policy_table,
)
from deepaa.report.run_tables import Results, Subject, read_subject, stamp

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
