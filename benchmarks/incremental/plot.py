"""Draws the table of docs/incremental.md: what an edit costs.

`python -m tools.write_figures` writes docs/images/edit-cost.svg. A test compares the picture with the results.
"""

from __future__ import annotations

from html import escape

from benchmarks.frame import Results

_WIDTH, _LEFT, _BARS, _ROW, _TOP = 400, 12, 290, 56, 92
_STYLE = """\
  <style>
    svg { --ground: #ffffff; --ink: #1f2328; --ours: #0969da; --bazel: #8250df; --script: #8c959f; }
    @media (prefers-color-scheme: dark) {
      svg { --ground: #0d1117; --ink: #e6edf3; --ours: #58a6ff; --bazel: #be8fff; --script: #6e7681; }
    }
    text { fill: var(--ink); }
    .ground { fill: var(--ground); }
    .ours { fill: var(--ours); }
    .bazel { fill: var(--bazel); }
    .script { fill: var(--script); }
  </style>"""
_DESCRIPTION = (
    "Seconds of a build after one edit of each kind, on the command line and with Bazel, and of a plain script."
)


def drawn(results: Results) -> str:
    """Returns the picture of the results, as SVG."""
    rows = results["sections"]["edits"]
    script = results["sections"]["plain script"][0]["plain s"]
    scale = _BARS / script
    height = _TOP + _ROW * len(rows) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"',
        '     role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="14">',
        f'  <title id="title">What an edit costs</title>\n  <desc id="desc">{_DESCRIPTION}</desc>',
        _STYLE,
        f'  <rect class="ground" width="{_WIDTH}" height="{height}" rx="8"/>',
        *_legend(),
        f'  <text x="{_LEFT}" y="50">a plain script, after any edit</text>',
        *_bar("script", 56, script, scale),
    ]
    for number, row in enumerate(rows):
        top = _TOP + number * _ROW
        lines += [f'  <text x="{_LEFT}" y="{top + 12}">{escape(row["edit"])}</text>']
        lines += _bar("ours", top + 18, row["s"], scale) + _bar("bazel", top + 34, row["Bazel s"], scale)
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> list[str]:
    places = (("ours", _LEFT, "etbuild build"), ("bazel", 150, "Bazel"), ("script", 240, "plain script"))
    return [
        line
        for kind, x, name in places
        for line in (
            f'  <rect class="{kind}" x="{x}" y="12" width="12" height="12" rx="2"/>',
            f'  <text x="{x + 18}" y="23">{name}</text>',
        )
    ]


def _bar(kind: str, top: int, seconds: float, scale: float) -> list[str]:
    width = max(seconds * scale, 1)
    return [
        f'  <rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="13" rx="2"/>',
        f'  <text x="{_LEFT + width + 6:.1f}" y="{top + 12}">{seconds:.1f} s</text>',
    ]
