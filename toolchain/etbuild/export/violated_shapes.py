"""Says in the words of a manifest which dynamic shapes a model takes, when torch.export refuses the declared ones."""

from __future__ import annotations

import re

from etbuild.exception_text import shortened

MARK = "Constraints violated"
"""These words are in each such message of torch.export."""
_SUGGESTED = "Suggested fixes:"
_FOR_PROGRAMMERS = (
    r' For more information, run with TORCH_LOGS="\+dynamic"\.',
    r" If you're using mark_dynamic, [^.]*\.",
    r" If you're using Dim\.DYNAMIC, .* or Dim\.AUTO\.",
    r" The error above occurred when calling torch\.export\.export\. .*",
)
_NAMES = re.compile(rf"{MARK} \(([^)]+)\)!")
_NAMED_SIZE = re.compile(r"(\w+) = (L\[.*?\]\.size\(\)\[\d+\])")
_RANGE = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")
_SIZE = re.compile(r"(\w+) = (\d+)")
_DERIVED = re.compile(r"(\w+) = (?:(\d+)\*)?([A-Za-z_]\w*)(?: ([+-]) (\d+))?")


def message(text: str) -> str:
    """What is wrong, and the part of torch's message that names the dimensions and the first reason."""
    reasons = " ".join(text.partition(_SUGGESTED)[0].split())
    for part in _FOR_PROGRAMMERS:
        reasons = re.sub(part, "", reasons)
    for name, size in dict(_NAMED_SIZE.findall(reasons)).items():
        reasons = reasons.replace(f"{name} = {size}", name).replace(size, name)
    names = _NAMES.match(reasons)
    declared = f"of {', '.join(f'`{name}`' for name in names[1].split(', '))}" if names else "of a dimension"
    return shortened(f"the model does not take each declared size {declared}. torch.export says: {reasons}")


def hint(text: str) -> str:
    """What to write in the manifest, as far as torch suggests it."""
    general = "the model fixes or narrows a dynamic dimension"
    suggested = text.partition(_SUGGESTED)[2].partition("\n\n")[0]
    lines = [line.strip() for line in suggested.splitlines() if line.strip()]
    ranges = {match[1]: (match[2], match[3]) for match in map(_RANGE.fullmatch, lines) if match}
    written = [_written(line, ranges) for line in lines if not _is_root(line, lines)]
    return f"{general}: {'; '.join(written)}" if written else general


def _is_root(line: str, lines: list[str]) -> bool:
    """Whether a suggestion is the range of a dimension that no input has: torch derives `t` from a new `_t`."""
    match = _RANGE.fullmatch(line)
    derived = filter(None, map(_DERIVED.fullmatch, lines))
    return match is not None and any(each[3] == match[1] == f"_{each[1]}" for each in derived)


def _written(line: str, ranges: dict[str, tuple[str | None, str | None]]) -> str:
    """A suggestion of torch, as a manifest states it."""
    if match := _RANGE.fullmatch(line):
        return f"write {{dim: {match[1]}{_bounds(*ranges[match[1]], 1, 0)}}}"
    if match := _SIZE.fullmatch(line):
        return f"write `null` for `{match[1]}`, which is always {match[2]}"
    if match := _DERIVED.fullmatch(line):
        times, plus = int(match[2] or 1), int(f"{match[4] or '+'}{match[5] or 0}")
        bounds = _bounds(*ranges.get(match[3], (None, None)), times, plus)
        if match[3] == f"_{match[1]}" and not plus:
            return f"write {{dim: {match[1]}, multiple_of: {times}{bounds}}}"
        return f"write {{dim: {line.partition(' = ')[2]}{bounds}}} for `{match[1]}`"
    return f"torch suggests {line}"


def _bounds(low: str | None, high: str | None, times: int, plus: int) -> str:
    """The range of a size `times * SIZE + plus`, from that of SIZE, as the end of a mapping."""
    given = {key: bound for key, bound in (("min", low), ("max", high)) if bound is not None}
    return "".join(f", {key}: {times * int(bound) + plus}" for key, bound in given.items())
