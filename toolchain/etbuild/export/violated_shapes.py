"""Translates torch.export's message about refused dynamic shapes into the words of a manifest."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from etbuild.exception_text import shortened

MARK = "Constraints violated"
"""Words in each of these messages of torch.export."""
_SUGGESTED = "Suggested fixes:"
_FOR_PROGRAMMERS = (
    r' For more information, run with TORCH_LOGS="\+dynamic"\.',
    r" If you're using mark_dynamic, [^.]*\.",
    r" If you're using Dim\.DYNAMIC, .* or Dim\.AUTO\.",
    r" The error above occurred when calling torch\.export\.export\. .*",
)
_STACK = re.compile(r"\n+User stack:\n(?:  File .*\n(?:    .*(?:\n|$))*)*")
_NAMES = re.compile(rf"{MARK} \(([^)]+)\)!")
_NAMED_SIZE = re.compile(r"(\w+) = (L\[.*?\]\.size\(\)\[\d+\])")
_RANGE = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")
_SIZE = re.compile(r"(\w+) = (\d+)")
_GUARD = re.compile(
    r"- Not all values of (\w+) in the specified range(?: (\d+) <=)? \1(?: <= (\d+))? "
    r"satisfy the generated guard (.*?)\.?$",
    re.MULTILINE,
)
_MOST_SIZES = 1 << 16  # of a dimension: Python computes each guard for each size
_ASSUMED = 2  # torch.export assumes that each dynamic size is at least this
_DERIVED = re.compile(r"(\w+) = (?:(\d+)\*)?([A-Za-z_]\w*)(?: ([+-]) (\d+))?")


def message(text: str) -> str:
    """The message for users: the dimensions, and the first reason in torch's own words."""
    reasons = " ".join(_with_names(_STACK.sub("\n", text)).partition(_SUGGESTED)[0].split())
    for part in _FOR_PROGRAMMERS:
        reasons = re.sub(part, "", reasons)
    narrowed = ", ".join(f"`{name}`" for name in names(text)) or "a dynamic dimension"
    return shortened(f"torch.export fixes or narrows {narrowed}. It says: {reasons}")


def names(text: str) -> list[str]:
    """The dimensions that torch.export fixes or narrows."""
    match = _NAMES.search(text)
    return match[1].split(", ") if match else []


def _with_names(text: str) -> str:
    """torch's message with the names of dimensions in place of its own names for the sizes of inputs."""
    for name, size in _NAMED_SIZE.findall(text):
        text = text.replace(f"{name} = {size}", name).replace(size, name)
    return text


def hint(text: str) -> str:
    """The changes of the manifest that torch suggests, or that follow from its guards."""
    suggested = text.partition(_SUGGESTED)[2].partition("\n\n")[0]
    lines = [line.strip() for line in suggested.splitlines() if line.strip()]
    ranges = {match[1]: (match[2], match[3]) for match in map(_RANGE.fullmatch, lines) if match}
    guarded_ranges = _ranges_of_guards(_with_names(text))
    sentences = [_sentence(line, ranges | guarded_ranges) for line in lines if not _is_root(line, lines)]
    mentioned = {word for line in lines for word in re.findall(r"\w+", line)}
    sentences += [_range(name, bounds) for name, bounds in guarded_ranges.items() if name not in mentioned]
    return "; ".join(sentences) or "write a smaller range, a `multiple_of` or `null`, or change the model"


def _ranges_of_guards(text: str) -> dict[str, tuple[str | None, str | None]]:
    """The smallest and the largest size of each dimension that guards narrow; None where there is no limit.

    torch's own suggestions may fail again: they ignore guards with `!=`, and a declared `min`. Leaves out a dimension
    if one of its guards also has another dimension.
    """
    guards: dict[tuple[str, str, str], list[str]] = {}
    for name, low, high, guard in _GUARD.findall(text):
        guards.setdefault((name, low, high), []).append(guard)
    ranges: dict[str, tuple[str | None, str | None]] = {}
    for (name, low, high), conditions in guards.items():
        first = max(int(low or 0), _ASSUMED)
        last = min(int(high or _MOST_SIZES), _MOST_SIZES)
        run = _longest_run(_fitting(conditions, name, range(first, last + 1)))
        if len(run) > 1 and (run[0], run[-1]) != (first, last):  # otherwise all sizes fit, but torch does not see that
            smallest = low if run[0] == first else str(run[0])
            if run[-1] == last < int(high or 0):
                continue  # the guards may refuse larger sizes
            largest = high if run[-1] == last else str(run[-1])
            ranges[name] = (smallest or None, largest or None)
    return ranges


def _fitting(conditions: list[str], name: str, sizes: Iterable[int]) -> list[int]:
    """The sizes of a dimension for which all guards hold. torch writes guards in Python."""
    try:
        guards = [compile(condition, "guard", "eval") for condition in conditions]
        functions = {"__builtins__": {}, "min": min, "max": max}
        return [size for size in sizes if all(eval(guard, functions, {name: size}) for guard in guards)]
    except Exception:  # noqa: BLE001 - a guard with another dimension or an unknown function
        return []


def _longest_run(sizes: Iterable[int]) -> list[int]:
    """The longest series of sizes without a gap."""
    runs = itertools.groupby(enumerate(sizes), key=lambda pair: pair[1] - pair[0])
    return max(([size for _, size in run] for _, run in runs), key=len, default=[])


def _is_root(line: str, lines: list[str]) -> bool:
    """Whether a suggestion is about a dimension that no input has: torch may derive `t` from a new dimension `_t`."""
    match = _RANGE.fullmatch(line)
    derived = filter(None, map(_DERIVED.fullmatch, lines))
    return match is not None and any(derivation[3] == match[1] == f"_{derivation[1]}" for derivation in derived)


def _sentence(line: str, ranges: dict[str, tuple[str | None, str | None]]) -> str:
    """A suggestion of torch in the words of a manifest."""
    if match := _RANGE.fullmatch(line):
        return _range(match[1], ranges[match[1]])
    if match := _SIZE.fullmatch(line):
        return f"write `null` for `{match[1]}`, which is always {match[2]}"
    if match := _DERIVED.fullmatch(line):
        times, plus = int(match[2] or 1), int(f"{match[4] or '+'}{match[5] or 0}")
        bounds = _bounds(*ranges.get(match[3], (None, None)), times, plus)
        if match[3] == f"_{match[1]}" and not plus:
            return f"write {{dim: {match[1]}, multiple_of: {times}{bounds}}}"
        return f"write {{dim: {line.partition(' = ')[2]}{bounds}}} for `{match[1]}`"
    return f"torch suggests {line}"


def _range(name: str, bounds: tuple[str | None, str | None]) -> str:
    return f"write {{dim: {name}{_bounds(*bounds, 1, 0)}}}"


def _bounds(low: str | None, high: str | None, times: int, plus: int) -> str:
    """The range of the size `times * SIZE + plus`, as the end of a mapping. SIZE is from `low` to `high`."""
    known_bounds = {key: bound for key, bound in (("min", low), ("max", high)) if bound is not None}
    return "".join(f", {key}: {times * int(bound) + plus}" for key, bound in known_bounds.items())
