"""What a model can write so that a backend takes an operator, in the words of PyTorch's users."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class _Rule:
    """An advice for an operator that was left out for a reason. Both are patterns."""

    operator: str
    why: str
    write: str


_RULES = (
    _Rule(
        r"mm|bmm|addmm|matmul",
        r"static param|no rule",
        "for a product with a weight, such as `x @ weight.T`, write `F.linear(x, weight)`",
    ),
    _Rule(
        r"(permute|transpose|t)(_copy)?",
        r"",
        "if it turns a weight for a product, such as in `x @ weight.T`, write `F.linear(x, weight)`",
    ),
    _Rule(
        r"mean",
        r"keepdim=True",
        "write `x.mean((2, 3), keepdim=True).flatten(1)` in place of `x.mean((2, 3))`",
    ),
    _Rule(
        r"mean",
        r"averaging 4D tensors",
        "it averages the last two of four dimensions: bring yours there, and write `.mean((2, 3), keepdim=True)`",
    ),
    _Rule(r"add|sub", r"alpha", "write `a + 2 * b` or `a - 2 * b` in place of `alpha=2`"),
    _Rule(r"\w*pool2d\w*", r"ceil mode", "leave out `ceil_mode=True`, and pad before the pooling"),
    _Rule(r"\w*pool2d\w*", r"zero-padding", "write `count_include_pad=False`, or leave out `padding`"),
    _Rule(r"\w*pool2d\w*", r"divisor", "leave out `divisor_override`"),
    _Rule(r"\w*pool2d\w*", r"stride", "take a `stride` that is not larger than `kernel_size`"),
    _Rule(r"pow", r"only support", "write products, such as `x * x * x` in place of `x ** 3`"),
    _Rule(
        r"_?(log_)?softmax",
        r"last dim",
        "bring the dimension to the end: `x.transpose(1, -1).softmax(-1).transpose(1, -1)`",
    ),
    _Rule(r"unsqueeze(_copy)?", r"trailing", "add the dimension at the end, or write `x.reshape(...)`"),
    _Rule(r"\w+", r"mixed input dtypes", "give both inputs one dtype: `.to(x.dtype)` for the other one"),
    _Rule(
        r"\w+",
        r"(?i:symbolic)|dynamic (output )?(sizes|shape)",
        "with a fixed size in the manifest it can be delegated",
    ),
    _Rule(
        r"embedding",
        r"no rule",
        "it only looks rows up, so it costs little outside of a delegate",
    ),
)


def of(operator: str, why_not: str) -> str | None:
    """What to write so that a backend takes an operator; None if nothing is known.

    Args:
        operator: The operator, such as `aten::mean.dim`.
        why_not: Why partitioners left it out.
    """
    name = operator.rpartition("::")[2].partition(".")[0]
    for rule in _RULES:
        if re.fullmatch(rule.operator, name) and re.search(rule.why, why_not):
            return rule.write
    return None
