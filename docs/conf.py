"""Sphinx's settings for the documentation site; ``make docs`` builds it.

GitHub shows the same pages, so they are plain Markdown. What Sphinx needs besides is derived here.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from pygments.lexers.shell import BashSessionLexer
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "kdp"
author = "the kdp maintainers"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

# The repository's root is the source folder, because pages link to those beside the code.
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "examples/README.md",
    "examples/*/README.md",
    "tests/*/README.md",
    "src/kdp/proto/README.md",
]
exclude_patterns = ["**/.*", "**/bin", "**/__pycache__", "build", "dist", "docs/_build"]

smartquotes = False  # it makes a dash of the "--" of a flag
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_heading_anchors_html_ids = True
# A console block shows commands behind "$ " with their output.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_copy_empty_lines = False
copybutton_here_doc_delimiter = "EOF"

html_theme = "furo"
html_title = f"kdp {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_extra_path = ["site/index.html"]  # sends readers of the site's root to its first page
html_static_path = ["site/kdp.css"]
html_css_files = ["kdp.css"]
html_favicon = "site/icon.svg"

_BULLET = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", re.MULTILINE)


def with_sidebar(_: Sphinx, docname: str, source: list[str]) -> None:
    """Make the sidebar of an index: each bullet that begins with a page is an entry, each heading a caption."""
    if docname.rpartition("/")[2] != "index":
        return
    sections = re.split(r"^(?=## )", source[0], flags=re.MULTILINE)
    for position, section in enumerate(sections):
        if entries := _BULLET.findall(section):
            caption = section.partition("\n")[0].removeprefix("## ")
            lines = [":hidden:", f":caption: {caption}", *(f"{title} <{target}>" for title, target in entries)]
            sections[position] = "\n".join([section.rstrip(), "", "```{toctree}", *lines, "```", "", ""])
    source[0] = "".join(sections)


class LinksAsOnGitHub(SphinxTransform):
    """Lets links reach ``<a id="4.2"></a>``, as on GitHub. A folder has no page: the link's text remains."""

    default_priority = 800  # before MyST resolves links

    def apply(self, **_: object) -> None:
        """Add the anchors, and remove the links to folders."""
        slugs = getattr(self.document, "myst_slugs", {})
        for node in self.document.findall(nodes.raw):
            if found := re.fullmatch(r'<a id="([^"]+)">', node.astext()):
                slugs[found[1]] = (node.line, found[1], found[1])
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for node in [*self.document.findall(pending_xref)]:
            if (folder / node["reftarget"]).is_dir():
                node.replace_self(node.children)


class Console(BashSessionLexer):
    """Commands behind ``$`` with their output, in which ``#`` begins a comment and no command of root's."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.add_lexer("console", Console)
    app.add_transform(LinksAsOnGitHub)
    app.connect("source-read", with_sidebar)
