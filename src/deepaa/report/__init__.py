"""Reports of policies, searches and trainings: tables, then figures, then pages.

Here belongs what a person looks at, in a file or in a terminal. Nothing is computed here that a
policy or a run does not say.
"""

from deepaa.report.classes import FoundClasses as FoundClasses
from deepaa.report.comparison import (
    Comparison as Comparison,
    Entry as Entry,
    common_space as common_space,
    compare_policies as compare_policies,
    comparison_grid as comparison_grid,
    has_found as has_found,
    load_entries as load_entries,
    plot_comparison as plot_comparison,
)
from deepaa.report.comparison_lines import comparison_lines as comparison_lines
from deepaa.report.contest import ContestView as ContestView, contest_table as contest_table
from deepaa.report.dots import contest_lines as contest_lines, plot_contest as plot_contest
from deepaa.report.drawing import (
    check_formats as check_formats,
    figure_bytes as figure_bytes,
    parse_formats as parse_formats,
    save_figures as save_figures,
)
from deepaa.report.figures import plot_operations as plot_operations
from deepaa.report.page import (
    GENERATOR as GENERATOR,
    Options as Options,
    check_pages as check_pages,
    classes_of as classes_of,
    comparison_page as comparison_page,
    draws_images as draws_images,
    make_figures as make_figures,
    make_page as make_page,
    originals_of as originals_of,
)
from deepaa.report.pictures import (
    Originals as Originals,
    find_originals as find_originals,
    named_images as named_images,
    png_bytes as png_bytes,
    preview_grid as preview_grid,
)
from deepaa.report.policy_tables import (
    Renderable as Renderable,
    as_dict as as_dict,
    operation_table as operation_table,
    policy_lines as policy_lines,
    policy_table as policy_table,
)
from deepaa.report.run_tables import Results as Results
from deepaa.report.subject import (
    Subject as Subject,
    config_beside as config_beside,
    policy_notes as policy_notes,
    read_subject as read_subject,
    stamp as stamp,
)
