"""What mkdocs does beyond its configuration: pages that live elsewhere in the repository, and links that leave the docs.

ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md stay where people look for them in a repository, and are pages of the site
as well. A link from a page to a file of the repository that is no page is shown as its text: the site stands alone.
Comments that steer the test of the snippets do not reach the reader.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_COMMENT = re.compile(r"^ *<!--.*?-->[ \t]*\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for name, source in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    uri = page.file.src_uri
    # Where the links of the page's text begin: the repository's root for those that live there.
    folder = "" if uri in ELSEWHERE else posixpath.join("docs", posixpath.dirname(uri))

    def mended(match: re.Match[str]) -> str:
        target = match["target"]
        if ":" in target:
            return match[0]
        inside = page_of(posixpath.normpath(posixpath.join(folder, target)))
        if inside is None or files.get_file_from_path(inside) is None:
            is_file = (ROOT / posixpath.join(folder, target)).exists() or (ROOT / target).exists()
            return match["text"] if is_file else match[0]
        relative = posixpath.relpath(inside, posixpath.dirname(uri) or ".")
        return f"[{match['text']}]({relative}{match['anchor'] or ''})"

    return _LINK.sub(mended, _COMMENT.sub("", markdown))


def page_of(path: str) -> str | None:
    """The page that a file of the repository is."""
    for name, source in ELSEWHERE.items():
        if path == source:
            return name
    return path.removeprefix("docs/") if path.startswith("docs/") else None
