"""A plugin of pytest: with DEEPAA_ALL_LIBRARIES=1 a library that is missing fails a test.

Otherwise such a test is skipped, as most machines have few of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import TypeVar

import pytest

ALL = "DEEPAA_ALL_LIBRARIES"
"""The variable that asks for it."""
REASON = re.compile(r"could not import|is not installed|needs the package")
"""What those who skip for want of a library say."""
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _without_skip(report: Report) -> Report:
    if os.environ.get(ALL) == "1" and report.skipped and REASON.search(str(report.longrepr)):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{ALL}=1, but: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_skip((yield))
