"""A hook of mkdocs: links to files outside the folder of the pages become their paths.

Pages are read in the repository too, where such links work. The site has no such files.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """The page with `[text](../file)` as `` text (`file`) `` where the file is no page."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def path(link: re.Match[str]) -> str:
        text, target = link[1], posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"`{target}`" if text == target else f"{text} (`{target}`)"

    return LINK.sub(path, markdown)
