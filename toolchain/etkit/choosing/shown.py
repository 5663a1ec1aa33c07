"""Shows trials: as a table, as JSON, as a plot, as a page, and as variants of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import yaml

from etbuild.errors import printable
from etkit.choosing.trials import Trial
from etkit.svg import COLOURS, document, text
from etkit.tables import duration, size, table

SCHEMA = "executorch-tuning/v1"
_WIDTH, _HEIGHT, _LEFT, _TOP = 560, 320, 80, 40
_NOT_KNOWN = "-"


def rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """A row for each trial, below a heading."""
    names = list(dict.fromkeys(name for each in trials for name in each.agreements))
    found: list[tuple[str, ...]] = [("scheme", "size", *map(_title, names), "latency", "memory", "")]
    for each in trials:
        values = [each.agreements.get(name) for name in names]
        measures = [_NOT_KNOWN if value is None else f"{value.mean:.4g} ({value.worst:.4g})" for value in values]
        fails = [name for name, value in each.agreements.items() if not value.passed]
        why = each.reason or (f"breaks checks.agreement: {', '.join(fails)}" if fails else "")
        found.append(
            (
                f"{each.scheme.name} *" if each.is_best else each.scheme.name,
                _NOT_KNOWN if each.size is None else size(each.size),
                *measures,
                _NOT_KNOWN if each.latency is None else duration(each.latency),
                _NOT_KNOWN if each.memory is None else size(each.memory),
                why,
            )
        )
    return found


def _title(name: str) -> str:
    return f"{name}: mean (worst)"


def as_text(trials: Sequence[Trial]) -> str:
    """The table, and the variants of the best schemes."""
    variants = lines(trials)
    lead = "\n\nNo other scheme beats those with a *. As variants of the manifest:\n\n" if variants else ""
    return table(rows(trials)) + lead + "\n".join(variants)


def as_json(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """The trials as JSON data, as `schemas/tuning.schema.json` describes it."""
    return {
        "schema": SCHEMA,
        "name": name,
        "trials": [
            {
                "scheme": each.scheme.name,
                "size": each.size,
                "memory": each.memory,
                "latency": each.latency,
                "agreement": {
                    key: {"mean": value.mean, "worst": value.worst, "passed": value.passed}
                    for key, value in each.agreements.items()
                },
                "best": each.is_best,
                "reason": each.reason,
                "variant": each.scheme.patch,
            }
            for each in trials
        ],
    }


def lines(trials: Sequence[Trial]) -> list[str]:
    """The section `variants` for the best schemes, as lines; empty if the manifest has the only best one."""
    found = [entry(each.scheme.name, each.scheme.patch) for each in trials if each.is_best and each.scheme.patch]
    return ["variants:", *(f"  {each}" for each in found)] if found else []


def entry(name: str, patch: Mapping[str, Any]) -> str:
    """A variant on one line."""
    return f"{_flow(name)}: {_flow(patch)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    # In a list, since outside of lists a text needs no quotes around `, `.
    style = '"' if isinstance(value, str) and "\n" in value else None  # other styles break the line
    written: str = yaml.safe_dump([value], default_style=style, default_flow_style=True, width=2**20)
    return written.removesuffix("\n").removeprefix("[").removesuffix("]")


def plot(name: str, trials: Sequence[Trial]) -> str:
    """The size and the first agreement of each scheme, as an SVG image. The best ones are joined by a line."""
    measure = next((key for each in trials for key in each.agreements), None)
    known = [each for each in trials if each.size is not None and measure in each.agreements]
    title = f"{name}: {measure or 'agreement'} over size; beside each point its latency"
    body = [text(_LEFT, 20, title)]
    body += _points(known, measure) if measure is not None else [text(_LEFT, _TOP + 20, "nothing was measured")]
    return document(_LEFT + _WIDTH + 140, _TOP + _HEIGHT + 60, body)


def _points(known: Sequence[Trial], measure: str) -> Iterator[str]:
    sizes = [float(each.size or 0) for each in known]
    values = [_finite(each.agreements[measure].mean) for each in known]
    wide, high = _range(sizes), _range(values)
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>'
    for share in (0.0, 0.5, 1.0):
        x, y = _LEFT + share * _WIDTH, _TOP + (1 - share) * _HEIGHT
        yield text(x, _TOP + _HEIGHT + 18, size(round(wide[0] + share * (wide[1] - wide[0]))), 'text-anchor="middle"')
        yield text(_LEFT - 6, y + 4, f"{high[0] + share * (high[1] - high[0]):.4g}", 'text-anchor="end"')
    places = {
        each.scheme.name: (
            _LEFT + _WIDTH * (of_size - wide[0]) / (wide[1] - wide[0]),
            _TOP + _HEIGHT * (1 - (value - high[0]) / (high[1] - high[0])),
        )
        for each, of_size, value in zip(known, sizes, values, strict=True)
    }
    front = sorted(places[each.scheme.name] for each in known if each.is_best)
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in front)
    yield f'<polyline points="{joined}" fill="none" stroke="{COLOURS[2]}" stroke-dasharray="4 3"/>'
    for each in known:
        x, y = places[each.scheme.name]
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[2 if each.is_best else 0]}"/>'
        label = each.scheme.name + (f", {duration(each.latency)}" if each.latency is not None else "")
        yield text(round(x + 9, 1), round(y + 4, 1), label)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, with a margin."""
    low, high = min(values), max(values)
    margin = (high - low) / 10 or abs(high) / 10 or 1.0
    return low - margin, high + margin


def _finite(value: float) -> float:
    """A number that can be drawn."""
    return max(-1e9, min(1e9, value)) if value == value else 0.0  # noqa: PLR0124 - NaN differs from itself


def page(name: str, trials: Sequence[Trial]) -> str:
    """The table, the plot and the variants as a page, which loads no other files."""
    head, *others = rows(trials)
    cells = "".join(f"<th>{_escaped(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>\n" for row in others)
    title = _escaped(f"Schemes of {name}")
    others_best = "The manifest has the best one." if any(each.is_best for each in trials) else "There is none."
    variants = _escaped("\n".join(lines(trials)) or others_best)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        "<style>body { font-family: sans-serif; margin: 2rem; } td, th { padding: 0.2rem 0.8rem; text-align: left; } "
        "pre { background: #f4f4f4; padding: 1rem; overflow: auto; }</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
        f"<p>No other scheme beats those with a *.</p>\n{plot(name, trials)}"
        f"<h2>Variants of the best</h2>\n<pre>{variants}</pre>\n</body>\n</html>\n"
    )


def _escaped(content: str) -> str:
    return escape("\n".join(map(printable, content.split("\n"))))
