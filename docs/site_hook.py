"""MkDocs hook: pages outside docs/, the linked source files, and the generated reference.

Links in Markdown files are relative to the file, as a Git host resolves them. On the site a link to
a file outside docs/ leads to a page made from that file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from site_reference import reference_pages

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "AGENTS.md": "agents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "configs/ADDING_A_SCHEDULE.md": "guides/schedule.md",
    "environments/ADDING_A_WORLD.md": "guides/world.md",
    "tasks/training/ADDING_AN_ALGORITHM.md": "guides/algorithm.md",
}
"""Path of a Markdown file outside docs/ -> its page on the site."""

LINK = re.compile(r"(\]\()([^()\s#]+)(#[^()\s]*)?(\))")
CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[^\n]*$|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, the reference, and a page for each linked source file."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for uri, text in reference_pages().items():
        files.append(File.generated(config, uri, content=text))
    for path in linked_sources(files):
        files.append(
            File.generated(
                config,
                source_uri(path),
                content=source_page(path),
                inclusion=InclusionLevel.NOT_IN_NAV,
            )
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    source = source_path(page.file)

    def rewritten(match: re.Match[str]) -> str:
        path = linked_path(source, match[2])
        if path is None:
            return match[0]
        target = posixpath.relpath(site_uri(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{target}{match[3] or ''}{match[4]}"

    return "".join(
        text if i % 2 else LINK.sub(rewritten, text) for i, text in enumerate(CODE.split(markdown))
    )


def source_path(file: File) -> str:
    """Return the path in the repository of a page's source."""
    of_uri = {uri: path for path, uri in PAGES.items()}
    return of_uri.get(file.src_uri, f"docs/{file.src_uri}")


def linked_path(source: str, target: str) -> str | None:
    """Return the path in the repository that a link leads to, or None if there is none."""
    if ":" in target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if not path.startswith("../") and (ROOT / path).exists() else None


def site_uri(path: str) -> str:
    """Return the source URI of the page for a path of the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else source_uri(path)


def source_uri(path: str) -> str:
    """Return the source URI of the page that shows a source file or folder."""
    return f"source/{path}.md"


def linked_sources(files: Files) -> list[str]:
    """Return the paths outside docs/ that pages link to and that are no pages of the site."""
    linked: set[str] = set()
    for file in files.documentation_pages():
        source = source_path(file)
        for text in CODE.split(file.content_string)[::2]:
            linked |= {
                path for match in LINK.finditer(text) if (path := linked_path(source, match[2]))
            }
    return sorted(path for path in linked if path not in PAGES and not path.startswith("docs/"))


def source_page(path: str) -> str:
    """Return a page that shows a source file, or the names in a folder."""
    file = ROOT / path
    if file.is_dir():
        body = "\n".join(
            f"- `{each.name}`"
            for each in sorted(file.iterdir())
            if not each.name.startswith(("_", "."))
        )
    else:
        body = (
            f"````` {LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n`````"
        )
    return f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n{body}\n"
