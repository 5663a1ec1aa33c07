"""Errors of torch.export in the words of a manifest: which line, which dimension, and what to do."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterable
from traceback import StackSummary, walk_tb

from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import hints, shortened, summary
from etbuild.export import method_results, size_conditions
from etbuild.export.example_values import dimension_names
from etbuild.export.size_conditions import SizeConditions
from etbuild.foreign_errors import from_exception
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import active_finder, failed, package_line, source_line
from etbuild.plan.step_plans import ExportPlan

FILL = "fill everything that keeps tensors between calls, such as a cache, in the factory"
"""What to do about a tensor that one method computes and another one reads."""
_DATA_DEPENDENT = (
    "a branch or a size depends on the values of a tensor, which an export does not know: choose between values by "
    "torch.where, between computations by torch.cond, and write torch._check for conditions that always hold"
)
_OF_LAYERS = {
    "_detect_is_causal_mask": "the layer looks whether the mask is causal, unless the call says it: pass "
    "`tgt_is_causal` to a Transformer or a TransformerDecoder, `src_is_causal` to a Transformer, `is_causal` to a "
    "TransformerEncoder"
}
"""What to do about functions of PyTorch's layers that depend on values."""
_UNSUPPORTED = "strict export cannot trace this: change the model, or set `strict: false`"
# A word in the message or type of torch.export's error, the part of the method that caused it, and a hint.
_EXPORT_HINTS = (
    (
        "fake tensor in the exported program constant's list",
        "entry",
        f"something keeps a tensor that a method computes, and another one reads it: {FILL}. Or a method writes to "
        "`.data` of a buffer: write to the buffer itself",
    ),
    ("GuardOnDataDependent", "entry", _DATA_DEPENDENT),
    ("data-dependent", "entry", _DATA_DEPENDENT),
    (size_conditions.VIOLATED, "dynamic_shapes", None),
    ("ConstraintViolation", "dynamic_shapes", "the example inputs or the model do not allow the declared range"),
    ("dynamic_shapes", "dynamic_shapes", None),
    ("in output, which is not a known type", "entry", method_results.HINT),
    ("Unsupported", "entry", _UNSUPPORTED),
    ("graph break", "entry", _UNSUPPORTED),
)


def export_hint(error: BaseException) -> tuple[str, str | None]:
    """The part of a method that caused an error of torch.export, and what to do."""
    text = f"{type(error).__name__}: {error}"
    return next(((part, hint) for word, part, hint in _EXPORT_HINTS if word in text), ("entry", None))


def export_error(error: BaseException, name: str, plan: ExportPlan, conditions: SizeConditions) -> BuildError:
    """The error for a method that torch.export refuses."""
    method, text = plan.methods[name], str(error)
    part, hint = export_hint(error)
    if size_conditions.VIOLATED in text:
        line, hint = None, hints(violated_hint(text, conditions), _same_dimensions(text, name, plan))
    else:
        line = source_line(error) or _quoted_line(str(error))
        hint = _data_dependent_hint(error) if hint == _DATA_DEPENDENT else hint
    quoted = text_of_line(line)
    if "Could not extract specialized integer" in text and _assigns_to_element(quoted):
        hint = "an assignment takes no index that is a number which a tensor holds: write `x[i.reshape(1)] = y`"
    action = failed(f"exporting `{method.entry}`", error, line)
    path: DocumentPath = ("methods", name, part)
    huggingface = plan.model.huggingface
    if huggingface and part == "entry":  # users cannot change the code of the model
        hint, path = huggingface.export_hint(error), ("model", "huggingface")
    elif huggingface:
        hint = hints(hint, huggingface.shapes_hint)
    hint_text = hints(f"the line is `{quoted}`" if quoted else None, hint, package_line(error))
    return from_exception(error, BuildError, path, action, hint_text, said=said_by(error))


def _data_dependent_hint(error: BaseException) -> str | None:
    """What to do about values that an export does not know; and the line of PyTorch's layer that needs them."""
    frames = walk_tb(error.__traceback__)
    of_layers = (each for each in frames if str(each[0].f_globals.get("__name__")).startswith("torch.nn."))
    trace = "".join(StackSummary.extract(of_layers).format()) or str(error)
    line = source_lines.innermost(trace, lambda file: None)
    if line is None or not line.file.startswith("torch/nn/"):
        return _DATA_DEPENDENT
    return hints(f"PyTorch reads them at {line}", _OF_LAYERS.get(line.function, _DATA_DEPENDENT))


def violated_hint(text: str, conditions: SizeConditions) -> str | None:
    """A hint for dimensions that torch.export refuses: the code that fixes or narrows them, and the shapes to write."""
    return hints(conditions.about(_narrowed(text)), _shapes_to_write(text))


def _same_dimensions(text: str, name: str, plan: ExportPlan) -> str | None:
    """A hint that names other methods with a dimension that torch.export narrows: they may fail next."""
    narrowed = {*_narrowed(text)}
    methods = plan.methods.items()
    others = [
        f"`{other_name}`" for other_name, method in methods if other_name != name and narrowed & dimension_names(method)
    ]
    have = "have" if len(others) > 1 else "has"
    return f"{', '.join(others)} {have} this dimension too, and may need the same change" if others else None


def text_of_line(line: str | None) -> str | None:
    """The text of a source line; None if it is not known. `line` has the form `model.py:12, in forward`."""
    name, _, number = (line or "").partition(",")[0].rpartition(":")
    source_lines = active_finder().contents.get(name, b"").decode("utf-8", "replace").splitlines()
    text = source_lines[int(number) - 1].strip() if number.isdecimal() and 0 < int(number) <= len(source_lines) else ""
    return text or None


def _assigns_to_element(text: str | None) -> bool:
    """Whether a line of a source has an assignment such as `x[i] = y`."""
    with contextlib.suppress(SyntaxError):
        nodes = ast.walk(ast.parse(text or ""))
        return any(isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) for each in nodes)
    return False


def said_by(error: BaseException) -> str:
    """torch's message without references to logs and settings."""
    text = str(error).partition(" If this type holds tensors")[0]
    if text != str(error):
        return f"{type(error).__name__}: {text}"
    if size_conditions.VIOLATED in text:
        return _violation(text)
    return _with_legend(summary(error))


_SYMBOLS = {
    r"(?<![\w.])s\d\d+(?!\w)": "stands for a dynamic size",
    r"(?<![\w.])u\d+(?!\w)": "stands for a size or number that depends on the values of a tensor",
}
"""Patterns of torch's names for sizes, such as `s70` and `u1`, and their meaning."""


def _with_legend(text: str) -> str:
    """A message, and the meaning of each name of a size in it."""
    symbols = [(sorted({*re.findall(pattern, text)}), meaning) for pattern, meaning in _SYMBOLS.items()]
    legend = [f"`{name}` {meaning}" for names, meaning in symbols for name in names]
    return "; ".join([text, *legend])


def _quoted_line(text: str) -> str | None:
    """The last line of a declared source that a message quotes, as messages of TorchDynamo do; None without one."""
    last = None
    for line in text.splitlines():
        for name, path in active_finder().sources.items():
            marker = f'File "{path}", line '
            if marker in line:
                number, _, function = line.split(marker, 1)[1].partition(", ")
                last = f"{name}:{number}" + (f", {function.strip()}" if function else "")
    return last


_SUGGESTED = "Suggested fixes:"
_FOR_PROGRAMMERS = (
    r' For more information, run with TORCH_LOGS="\+dynamic"\.',
    r" If you're using mark_dynamic, [^.]*\.",
    r" If you're using Dim\.DYNAMIC, .* or Dim\.AUTO\.",
    r" The error above occurred when calling torch\.export\.export\. .*",
)
_STACK = re.compile(r"\n+User stack:\n(?:  File .*\n(?:    .*(?:\n|$))*)*")
_NAMES = re.compile(rf"{size_conditions.VIOLATED} \(([^)]+)\)!")
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


def _violation(text: str) -> str:
    """The message for users: the dimensions, and the first reason in torch's own words."""
    reasons = " ".join(_with_names(_STACK.sub("\n", text)).partition(_SUGGESTED)[0].split())
    for part in _FOR_PROGRAMMERS:
        reasons = re.sub(part, "", reasons)
    narrowed = ", ".join(f"`{name}`" for name in _narrowed(text)) or "a dynamic dimension"
    return shortened(f"torch.export fixes or narrows {narrowed}. It says: {reasons}")


def _narrowed(text: str) -> list[str]:
    """The dimensions that torch.export fixes or narrows."""
    match = _NAMES.search(text)
    return match[1].split(", ") if match else []


def _with_names(text: str) -> str:
    """torch's message with the names of dimensions in place of its own names for the sizes of inputs."""
    for name, size in _NAMED_SIZE.findall(text):
        text = text.replace(f"{name} = {size}", name).replace(size, name)
    return text


def _shapes_to_write(text: str) -> str:
    """The changes of the manifest that torch suggests, or that follow from its guards."""
    suggested = text.partition(_SUGGESTED)[2].partition("\n\n")[0]
    lines = [line.strip() for line in suggested.splitlines() if line.strip()]
    ranges = {match[1]: (match[2], match[3]) for match in map(_RANGE.fullmatch, lines) if match}
    guarded_ranges = _ranges_of_guards(_with_names(text))
    sentences = [_sentence(line, ranges | guarded_ranges) for line in lines if not _is_root(line, lines)]
    mentioned = {word for line in lines for word in re.findall(r"\w+", line)}
    sentences += [range_hint(name, bounds) for name, bounds in guarded_ranges.items() if name not in mentioned]
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
        return range_hint(match[1], ranges[match[1]])
    if match := _SIZE.fullmatch(line):
        return f"write `null` for `{match[1]}`, which is always {match[2]}"
    if match := _DERIVED.fullmatch(line):
        times, plus = int(match[2] or 1), int(f"{match[4] or '+'}{match[5] or 0}")
        bounds = _bounds(*ranges.get(match[3], (None, None)), times, plus)
        if match[3] == f"_{match[1]}" and not plus:
            return f"write {{dim: {match[1]}, multiple_of: {times}{bounds}}}"
        return f"write {{dim: {line.partition(' = ')[2]}{bounds}}} for `{match[1]}`"
    return f"torch suggests {line}"


def range_hint(name: str, bounds: tuple[str | None, str | None]) -> str:
    """The hint to write a range: the name of a dimension, and its smallest and largest size."""
    return f"write {{dim: {name}{_bounds(*bounds, 1, 0)}}}"


def _bounds(low: str | None, high: str | None, times: int, plus: int) -> str:
    """The range of the size `times * SIZE + plus`, as the end of a mapping. SIZE is from `low` to `high`."""
    return "".join(f", {key}: {times * int(bound) + plus}" for key, bound in (("min", low), ("max", high)) if bound)
