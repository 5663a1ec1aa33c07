"""A hook of MkDocs that makes the documentation site from the same files that GitHub shows.

The links of a page point to files in the repository. The hook adds every such file to the site as a page, and rewrites
the links. The front page is made from README.md and the nav. So nothing is written twice, and the site works without a
network. The pages are in a folder with the name of the version.
"""

from __future__ import annotations

import html
import posixpath
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from etbuild.version import VERSION
from tools import site_nav, site_versions
from tools.markdown_links import links, slug

_ROOT = Path(__file__).parents[1]
_DOCS = "docs/"
_FRONT = "index.md"
_PAGES = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
_SOURCES = "source"  # the folder of the site for files of the repository that pages link to
_IMAGES = (".png", ".svg")
_SCRIPTS = _ROOT / ".cache/docs/scripts"
_JAVASCRIPTS = "assets/javascripts"
_STYLES = "assets/stylesheets"
_OWN = _ROOT / "tools/site"  # the folder with the style and the script of the site
_HEADER = '<div class="md-header__topic">'
_SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'
_OUTPUT = re.compile(r"<!-- snippet (?:output|part) of: (.+) -->\n\n((?:(?: {4}.*)?\n)+)")
_CARD = 5  # the front page names at most so many pages of a section
_FOR = {
    "Tutorials": "Learn it, step by step.",
    "How-to": "Do one thing.",
    "Explanation": "Understand why.",
    "Reference": "Look up a key, an option or a name.",
}
_LANGUAGES = {".bzl": "starlark", ".py": "python", ".sh": "shell", ".yml": "yaml"}
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_REMOTE = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Gives headings the same anchors as on GitHub, and puts the pages into a folder of the version."""
    config.site_dir = str(Path(config.site_dir) / VERSION)
    config.mdx_configs["toc"]["slugify"] = lambda heading, separator: slug(heading)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of `docs/`, the files that pages link to, and the scripts. Makes the menu."""
    for path, uri in _PAGES.items():
        files.append(File.generated(config, uri, content=(_ROOT / path).read_text("utf-8")))
    pending = [file for file in files if file.is_documentation_page()]
    while pending:
        page = pending.pop()
        for link in links(page.content_string):
            path = _repository_path(page.src_uri, link.path)
            linked = _site_uri(path) if link.path and (_ROOT / path).exists() else None
            if linked and not files.get_file_from_path(linked):
                added = _source(config, path, linked)
                files.append(added)
                pending += [added] if path.endswith(".md") or linked.endswith("/README.md") else []
    for script in [*sorted(_SCRIPTS.glob("*.js")), _OWN / "site.js"]:
        files.append(File.generated(config, f"{_JAVASCRIPTS}/{script.name}", abs_src_path=str(script)))
    files.append(File.generated(config, f"{_STYLES}/site.css", abs_src_path=str(_OWN / "site.css")))
    pages = [file.src_uri for file in files if file.is_documentation_page()]
    listed = (_ROOT / _DOCS / site_nav.LIST).read_text("utf-8")
    config.nav = site_nav.nav(listed, pages, lambda target: _site_uri(_repository_path(site_nav.LIST, target)))
    readme = (_ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, _FRONT, content="\n\n".join(_front_page(readme, config.nav, files))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page so that they lead to pages of the site."""
    parts, end = [], 0
    for link in links(markdown):
        if link.path:
            uri = _site_uri(_repository_path(page.file.src_uri, link.path))
            relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
            parts += [markdown[end : link.start], relative, f"#{link.anchor}" if link.anchor else ""]
            end = link.start + len(link.target)
    return "".join([*parts, markdown[end:]])


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Adds the version, a label for the search, and to pages with diagrams, the script for these.

    Without this script, the theme would load one from another server.

    Raises:
        PluginError: The page would load something from another server.
    """
    up = "../" * page.url.count("/")
    output = _with_version(output, up).replace(_SEARCH, f'{_SEARCH} aria-label="Search"', 1)
    if 'class="mermaid"' in output:
        output = output.replace("</head>", f'<script src="{up}{_JAVASCRIPTS}/mermaid.js"></script></head>', 1)
    remote = _REMOTE.search(output)
    if remote:
        raise PluginError(f"{page.file.src_uri} loads something from another server: {remote[0]}")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Lists the versions in the folder of the website."""
    site_versions.write(Path(config.site_dir).parent)


def _with_version(output: str, up: str) -> str:
    """Adds the version to the header, with the list of others that a script fills in."""
    shown = (
        f'<div class="md-version" data-top="{up}../">'
        f'<button class="md-version__current" aria-label="Version {VERSION}: select another one">{VERSION}</button>'
        '<ul class="md-version__list"></ul></div>'
    )
    start = output.index("</span>", output.index(_HEADER)) + len("</span>")
    scripts = f'<script src="{up}../versions.js"></script><script src="{up}{_JAVASCRIPTS}/site.js"></script>'
    return f"{output[:start]}{shown}{output[start:]}".replace("</body>", f"{scripts}</body>", 1)


def _front_page(readme: str, nav: Any, files: Files) -> Iterator[str]:
    """Yields the front page: the README's first part, the outputs of its commands, and the sections of the site."""
    yield "---\nhide: [navigation, toc]\n---"
    first, _, rest = readme.partition("\n## ")
    yield first.strip()
    lines = []
    for command, output in _OUTPUT.findall(rest):
        if command.startswith("etbuild "):
            lines += [f"$ {command}", *textwrap.dedent(output).strip("\n").split("\n"), ""]
    session = html.escape("\n".join(lines).strip())
    yield f'<div class="terminal" markdown="0"><pre><code tabindex="0">{session}</code></pre></div>'
    yield '<div class="grid cards" markdown>'
    for section in nav:
        for title, entries in section.items() if isinstance(section, dict) else ():
            said = _FOR.get(title, "")
            yield textwrap.indent("\n\n".join([f"**{title}**", said, *_card(entries, files)]), "    ").replace(
                "    ", "-   ", 1
            )
    yield "</div>"


def _card(entries: list[Any], files: Files) -> Iterator[str]:
    """Yields links to the first pages of a section. The link of a section below it leads to its first page."""
    for entry in entries[:_CARD]:
        uri = entry
        while not isinstance(uri, str):
            uri = next(iter(uri.values())) if isinstance(uri, dict) else uri[0]
        found = files.get_file_from_path(uri)
        heading = re.search(r"^# (.*)", found.content_string if found else "", re.MULTILINE)
        title = next(iter(entry)) if isinstance(entry, dict) else heading[1] if heading else uri
        yield f"[{title}]({_shown_by(uri)})"


def _repository_path(uri: str, target: str) -> str:
    """Returns the path in the repository that a link on a page of the site refers to.

    Args:
        uri: The page's path in the site's sources.
        target: The link as it is written in the page's file in the repository.
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(_shown_by(uri)), target))


def _shown_by(uri: str) -> str:
    """Returns the path in the repository of the file that a page shows. The links of the front page are those of
    README.md."""
    inverse = {site: path for path, site in _PAGES.items()} | {_FRONT: "README.md"}
    inside = f"{_SOURCES}/"
    return inverse.get(uri) or (uri.removeprefix(inside) if uri.startswith(inside) else f"{_DOCS}{uri}")


def _site_uri(path: str) -> str:
    """Returns the path in the site's sources for a file or folder of the repository."""
    if path in _PAGES:
        return _PAGES[path]
    if path.startswith(_DOCS):
        return path.removeprefix(_DOCS)
    if (_ROOT / path).is_dir():
        readme = f"{path}/README.md"
        return _site_uri(readme) if (_ROOT / readme).exists() else f"{_SOURCES}/{path}/index.md"
    return f"{_SOURCES}/{path}" + ("" if path.endswith((".md", *_IMAGES)) else ".md")


def _source(config: MkDocsConfig, path: str, uri: str) -> File:
    """Returns a page or an image of the site that shows a file or a folder of the repository."""
    place = _ROOT / path
    if path.endswith(_IMAGES):
        return File.generated(config, uri, abs_src_path=str(place))
    if uri.endswith("/README.md"):
        text = (place / "README.md" if place.is_dir() else place).read_text("utf-8")
    elif path.endswith(".md"):
        text = place.read_text("utf-8")
    else:
        listed = subprocess.run(["git", "ls-files", path], cwd=_ROOT, capture_output=True, text=True, check=True)
        shown = [_shown(name, name.removeprefix(f"{path}/")) for name in listed.stdout.splitlines()]
        text = "\n\n".join([f"{_NOT_SEARCHED}# {path}", *shown])
    return File.generated(config, uri, content=text)


def _shown(path: str, name: str) -> str:
    """Returns a file as a code block with a heading."""
    try:
        text = (_ROOT / path).read_text("utf-8")
    except UnicodeDecodeError:
        return f"## {name}\n\nNo text."
    suffix = Path(path).suffix
    language = _LANGUAGES.get(suffix, "starlark" if Path(path).name in ("BUILD", "WORKSPACE") else suffix[1:] or "text")
    return f"## {name}\n\n````{language}\n{text.strip()}\n````"
