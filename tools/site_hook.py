"""A hook of MkDocs that makes the documentation site from the same files that GitHub shows.

The links of a page point to files in the repository. The hook adds every such file to the site as a page, and rewrites
the links. So nothing is written twice, and the site works without a network.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.markdown_links import links, slug

_ROOT = Path(__file__).parents[1]
_DOCS = "docs/"
_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
_SOURCES = "source"  # the folder of the site for files of the repository that pages link to
_IMAGES = (".png", ".svg")
_SCRIPTS = _ROOT / ".cache/docs/scripts"
_JAVASCRIPTS = "assets/javascripts"
_LANGUAGES = {".bzl": "starlark", ".py": "python", ".sh": "shell", ".yml": "yaml"}
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_REMOTE = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Gives headings the anchors that they have on GitHub."""
    config.mdx_configs["toc"]["slugify"] = lambda heading, separator: slug(heading)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of `docs/`, the files that pages link to, and the scripts. Fills in the `*` of the nav."""
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
                pending += [added] if path.endswith(".md") else []
    for script in sorted(_SCRIPTS.glob("*.js")):
        files.append(File.generated(config, f"{_JAVASCRIPTS}/{script.name}", abs_src_path=str(script)))
    config.nav = _with_all_guides(config.nav, files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes the links of a page lead to pages of the site."""
    parts, end = [], 0
    for link in links(markdown):
        if link.path:
            uri = _site_uri(_repository_path(page.file.src_uri, link.path))
            relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
            parts += [markdown[end : link.start], relative, f"#{link.anchor}" if link.anchor else ""]
            end = link.start + len(link.target)
    return "".join([*parts, markdown[end:]])


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Adds the script for diagrams to pages with diagrams. Without it, the theme would load one from another server.

    Raises:
        PluginError: The page would load something from another server.
    """
    if 'class="mermaid"' in output:
        up = "../" * page.url.count("/")
        output = output.replace("</head>", f'<script src="{up}{_JAVASCRIPTS}/mermaid.js"></script></head>', 1)
    remote = _REMOTE.search(output)
    if remote:
        raise PluginError(f"{page.file.src_uri} loads something from another server: {remote[0]}")
    return output


def _repository_path(uri: str, target: str) -> str:
    """Returns the path in the repository that a link on a page of the site refers to.

    Args:
        uri: The page's path in the site's sources.
        target: The link as it is written in the page's file in the repository.
    """
    inverse = {site: path for path, site in _PAGES.items()}
    inside = f"{_SOURCES}/"
    path = inverse.get(uri) or (uri.removeprefix(inside) if uri.startswith(inside) else f"{_DOCS}{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


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


def _with_all_guides(nav: Any, files: Files) -> Any:
    """Returns the nav with `*` replaced by the pages of `docs/` that it does not name."""
    named = set(re.findall(r"[^'\" ]+\.md", str(nav)))
    guides = sorted(file.src_uri for file in files if "/" not in file.src_uri and file.is_documentation_page())
    rest = [uri for uri in guides if uri not in named]

    def filled(entries: Any) -> Any:
        if isinstance(entries, dict):
            return {title: filled(below) for title, below in entries.items()}
        if isinstance(entries, list):
            return [new for entry in entries for new in (rest if entry == "*" else [filled(entry)])]
        return entries

    return filled(nav)
