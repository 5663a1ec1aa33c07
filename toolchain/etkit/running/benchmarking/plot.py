"""Draws the distribution of the times of calls: for each phase, the share of calls that took at most a time."""

from __future__ import annotations

from collections.abc import Sequence

from etkit.running.benchmarking.intervals import quantile
from etkit.running.benchmarking.results import Phase
from etkit.svg import COLOURS, document, text
from etkit.tables import duration

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 640, 140, 60, 50, 60
_POINTS = 200


def draw(names: Sequence[str], found: Sequence[Phase]) -> str:
    """The times of all phases as an SVG image.

    Args:
        names: The names of the programs.
        found: The phases.
    """
    body = [
        text(_LEFT + 320 * number, 18, name, f'fill="{colour}"')
        for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False))
    ]
    for row, phase in enumerate(found):
        body += _panel(_TOP + row * (_HEIGHT + _GAP), phase)
    return document(_LEFT + _WIDTH + 40, _TOP + len(found) * (_HEIGHT + _GAP), body)


def _panel(top: int, phase: Phase) -> list[str]:
    """A panel. It shows 99 % of the calls, so that one slow call does not squeeze the others."""
    times = [sorted(phase.times(number)) for number in range(len(phase.runs))]
    left = min(each[0] for each in times)
    right = max(quantile(each, 0.99) for each in times)
    right = right if right > left else left * 1.01 + 1e-9
    frame = f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>'
    parts = [frame, text(_LEFT, top - 6, f"{phase.title}: share of the calls that took at most")]
    parts += [
        text(_LEFT - 6, top + _HEIGHT * (1 - share) + 4, f"{share:.0%}", 'text-anchor="end"') for share in (0, 0.5, 1)
    ]
    for place in range(5):
        x = _LEFT + _WIDTH * place / 4
        shown = duration(left + (right - left) * place / 4)
        parts.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{top + _HEIGHT}" stroke="#eee"/>')
        parts.append(text(x, top + _HEIGHT + 16, shown, 'text-anchor="middle"'))
    for number, each in enumerate(times):
        parts.append(_line(top, each, (left, right), COLOURS[number]))
    return parts


def _line(top: int, times: Sequence[float], ends: tuple[float, float], colour: str) -> str:
    left, right = ends
    shares = [number / _POINTS for number in range(_POINTS + 1)]
    places = [min(quantile(times, share), right) for share in shares]
    points = " ".join(
        f"{_LEFT + _WIDTH * (place - left) / (right - left):.1f},{top + _HEIGHT * (1 - share):.1f}"
        for place, share in zip(places, shares, strict=True)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
