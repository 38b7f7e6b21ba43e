"""What MkDocs is given beside the pages in docs: made pages, and links that lead to them (``hooks`` in mkdocs.yml).

The pages are written to be read in the repository. On the site, each task of how-to.md and each method of methods.md
has a page of its own, links to files outside docs lead to pages that show these files, and every folder has a list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "docs" / "site")]  # hooks are loaded while it is as before

import method_page  # noqa: E402
import sections  # noqa: E402
from links import Links  # noqa: E402

OUTSIDE = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages outside docs that are pages of the site -> their name there."""

FOLDERS = {
    "decisions": ("Decisions", "Why it is built as it is: one page per choice, with what was tried and dropped."),
    "reports": ("Reports", "What `momadvise report` shows of finished runs. Each is one file that opens offline."),
}
"""Folders of docs without a page of their own: title and introduction of the list."""

_links = Links(ROOT)
_made: dict[str, str] = {}
"""Page of the site -> its text, for pages that are not files in docs."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages, and put them into the navigation."""
    _made.clear()
    _links.clear()
    for file in sorted((ROOT / "docs").rglob("*.md")):
        _links.add(file.relative_to(ROOT).as_posix(), file.relative_to(ROOT / "docs").as_posix())
    for origin, name in OUTSIDE.items():
        _make(name, (ROOT / origin).read_text(), origin)
    for folder, (title, said) in FOLDERS.items():
        if not (ROOT / "docs" / folder).is_dir():
            continue
        _make(f"{folder}/index.md", _listing(folder, title, said), f"docs/{folder}/")
    _links.add("docs/results/", "results/README.md")
    _split_how_to()
    for method in method_page.CATALOGUE:
        name = f"methods/{method.name}.md"
        _make(name, method_page.page(method), "docs/methods/")
        _links.add_section("docs/methods.md", method.name, name)
    config.nav = list(_expanded(config.nav or []))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages, and the files that any page links to."""
    texts = list(({file.src_uri: file.content_string for file in files.documentation_pages()} | _made).items())
    for name, text in texts:
        for path in _links.sources(text, _links.origin(name)):
            shown = f"source/{path.removesuffix('.md')}.md"
            _make(shown, _shown(path), path)
            texts.append((shown, _made[shown]))  # which may link to others
    for name, text in _made.items():
        place = InclusionLevel.NOT_IN_NAV if name.startswith("source/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, name, content=text, inclusion=place))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links lead to pages of the site; pages that are split become a list; comments are for those who edit."""
    name = page.file.src_uri
    if name == "how-to.md":
        markdown = _list_of_tasks(markdown)
    if name == "methods.md":
        markdown = sections.without(markdown, {method.name for method in method_page.CATALOGUE})
    return _links.rewritten(sections.without_comments(markdown), name)


def _make(name: str, text: str, origin: str) -> None:
    _made[name] = text
    _links.add(origin, name)


def _split_how_to() -> None:
    origin = "docs/how-to.md"
    for title, text in sections.sections((ROOT / origin).read_text()):
        name = f"how-to/{sections.slug(title)}.md"
        _made[name] = f"# {title}\n{text}"
        _links.add_section(origin, sections.slug(title), name)
        _links.stands_for(name, origin)


def _list_of_tasks(markdown: str) -> str:
    head = markdown.split("\n## ")[0]
    tasks = (f"- [{title}](#{sections.slug(title)})" for title, _ in sections.sections(markdown))
    return "\n".join((head, "", *tasks))


def _listing(folder: str, title: str, said: str) -> str:
    lines = [f"# {title}", "", said, ""]
    for file in sorted((ROOT / "docs" / folder).glob("*")):
        if file.suffix == ".md":
            lines.append(f"- [{sections.title(file.read_text())}]({file.name})")
        elif file.suffix == ".html":
            lines.append(f"- [{file.stem}]({file.name})")
    return "\n".join(lines)


def _shown(path: str) -> str:
    """A file of the repository as a page."""
    file = ROOT / path
    if file.suffix == ".md":
        return file.read_text()
    language = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml"}.get(file.suffix, "text")
    head = "---\nsearch: {exclude: true}\n---\n"
    return (
        f"{head}# {file.name}\n\n`{path}` of the repository.\n\n`````{language}\n{file.read_text().rstrip()}\n`````\n"
    )


def _expanded(entries: list[Any]) -> Iterator[Any]:
    """The navigation, with all pages of a folder or of a page that is split in the place of one entry."""
    for entry in entries:
        if isinstance(entry, dict):
            for title, inside in entry.items():
                found = list(_expanded(inside)) if isinstance(inside, list) else inside
                if found:
                    yield {title: found}
        elif entry == "how-to.md":
            yield entry
            yield from (name for name in _made if name.startswith("how-to/"))
        elif entry == "methods.md":
            yield entry
            yield from method_page.navigation()
        elif entry.endswith("/"):
            pages = sorted(path.name for path in (ROOT / "docs" / entry).glob("*.md"))
            first = "README.md" if "README.md" in pages else "index.md"
            if (ROOT / "docs" / entry).is_dir():
                yield from (f"{entry}{name}" for name in dict.fromkeys((first, *pages)))
        else:
            yield entry
