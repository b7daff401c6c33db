"""A hook of mkdocs: links to files outside this folder become their paths.

Pages are read in the repository too, where such links work. The site has no such files.
"""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The page with `[text](../file)` as `` text (`file`) ``."""

    def path(link: re.Match[str]) -> str:
        text, target = link[1], link[2].removeprefix("../")
        return f"`{target}`" if text == target else f"{text} (`{target}`)"

    return OUTSIDE.sub(path, markdown)
