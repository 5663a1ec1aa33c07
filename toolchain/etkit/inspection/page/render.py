"""Renders the page of a program: one HTML file without references to other files.

Every string comes from a file that may be hostile. The template escapes it, and invisible characters become visible
ones. A content security policy allows only the scripts and styles of this package, by their digests.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from etbuild.errors import counted, printable
from etkit.inspection import profile
from etkit.inspection.page import timeline
from etkit.inspection.page.content import PageContent
from etkit.tables import size

_HERE = Path(__file__).parent
SCRIPTS = ("cytoscape.min.js", "cytoscape-dagre.min.js", "d3-hierarchy.min.js")
"""The libraries in the page, in the order in which they run. `scripts/README.md` says where they come from."""


def render(content: PageContent) -> bytes:
    """The page, in UTF-8. The same content has the same bytes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["timeline"] = timeline.svg
    environment.filters["time"] = profile.shown
    environment.filters["share"] = profile.share
    environment.filters["counted"] = counted
    environment.filters["size"] = size
    environment.filters["name"] = _name
    scripts = [_script(_HERE / "scripts" / name) for name in SCRIPTS] + [_script(_HERE / "page.js")]
    style = (_HERE / "page.css").read_text("utf-8")
    shown = _visible(dataclasses.asdict(content))
    data = {
        "graphs": {str(number): method["graph"] for number, method in enumerate(shown["methods"])},
        "treemaps": {"layers": shown["layers"], "blobs": shown["blobs"]},
    }
    page = environment.get_template("page.html.j2").render(
        page=shown, scripts=scripts, style=style, data=_json(data), policy=_policy(scripts, style)
    )
    return page.encode("utf-8", "backslashreplace")


def _name(text: str) -> Any:
    """A name as escaped markup. A line may break after a part of the name, but not inside a part."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([._/]|::)(?=\w)", r"\1<wbr>", str(escape(text))))


def _script(path: Path) -> str:
    text = path.read_text("utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("//# sourceMappingURL="))


def _policy(scripts: list[str], style: str) -> str:
    allowed = " ".join(map(_source, scripts))
    return f"default-src 'none'; script-src {allowed}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _visible(value: Any) -> Any:
    """The same data with visible characters only, also in keys. Line ends stay."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_visible(item) for item in value]
    return value


def _json(data: Any) -> str:
    """JSON for a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
