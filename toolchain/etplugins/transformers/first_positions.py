"""The number that a decoder gives to the first position of a text.

Most decoders count from 0. RoBERTa counts from the number after that of padding, but only if it gets no `position_ids`.
Two calls show it: one without `position_ids`, and one with those from 0. Each says which rows of its tables it reads.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from etbuild.errors import BuildError, DocumentPath, InputError

_CACHE: DocumentPath = ("model", "huggingface", "cache")
_POSITIONS = "position_ids"
_TOKENS = 3
_F = torch.nn.functional
_PRODUCTS: frozenset[Any] = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.addmm}
    | {torch.baddbmm, torch.conv1d, _F.scaled_dot_product_attention}
)


def of(model: Any, length: int) -> int:
    """The number of the first position. The calls read no weights.

    Args:
        model: The decoder, with transformers' own `forward`.
        length: The number of tokens that the cache holds.

    Raises:
        InputError: The cache holds more tokens than a table of positions.
        BuildError: The decoder's own positions do not follow each other.
    """
    if _POSITIONS not in inspect.signature(type(model).forward).parameters:
        return 0
    own = _rows_read(model)
    from_zero = _rows_read(model, position_ids=torch.arange(_TOKENS, device="cpu")[None])
    shifts: dict[str, int] = {}
    tables = dict([*model.named_parameters(), *model.named_buffers()])
    for name, table in tables.items():
        rows, others = own.get(id(table)), from_zero.get(id(table))
        if rows is not None and others is not None and rows != others:
            shifts[name] = _shift(model, rows, others)
    if len({*shifts.values()}) > 1:
        raise _unknown(model)
    for name, first in shifts.items():
        _check_length(name, len(tables[name]) - first, first, length)
    return next(iter(shifts.values()), 0)


def _shift(model: Any, own: list[int], from_zero: list[int]) -> int:
    shifts = {mine - other for mine, other in zip(own, from_zero, strict=False)}
    if len(own) != len(from_zero) or len(shifts) != 1 or min(shifts) < 0:
        raise _unknown(model)
    return shifts.pop()


def _unknown(model: Any) -> BuildError:
    message = f"`{type(model).__name__}` numbers the positions of tokens in a way that is not known here"
    return BuildError.at(_CACHE, message, "leave out `cache`, or write a factory for this model")


def _check_length(table: str, most: int, first: int, length: int) -> None:
    if most < length:
        message = f"max_length {length} is more than the {most} positions of a text in the table `{table}`"
        hint = f"write {most} or less; positions begin at {first} in this table"
        raise InputError.at((*_CACHE, "max_length"), message, hint)


def _rows_read(model: Any, **inputs: torch.Tensor) -> dict[int, list[int]]:
    """Calls a decoder with a few tokens up to its first attention, and returns the rows that it reads of each table, by
    the identity of the table."""
    padding = getattr(model.config.get_text_config(decoder=True), "pad_token_id", None)
    token = 1 if padding == 0 else 0
    reads = _Reads()
    try:
        with torch.no_grad(), reads:
            ids = torch.full((1, _TOKENS), token, dtype=torch.int64, device="cpu")
            type(model).forward(model, input_ids=ids, use_cache=False, **inputs)
    except Exception:  # noqa: BLE001 - the first real call shows the error
        pass
    return reads.rows


class _FirstAttention(Exception):
    """The end of a call."""


class _Reads(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Keeps the rows that a model reads of each table. Lookups and linear layers return zeros, and the first other
    product ends the call.

    Attributes:
        rows: The rows by the identity of their table.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _PRODUCTS:
            raise _FirstAttention
        if func is _F.linear:
            return _projected(*args, **keywords)
        if func is _F.embedding:
            return self._looked_up(*args, **keywords)
        if func in (torch.index_select, torch.Tensor.index_select) and len(args) == 3:
            self._keep(args[0], args[2])
        return func(*args, **keywords)

    def _keep(self, table: torch.Tensor, rows: torch.Tensor) -> None:
        self.rows.setdefault(id(table), []).extend(rows.flatten().tolist())

    def _looked_up(self, rows: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self._keep(weight, rows)
        return torch.zeros((*rows.shape, weight.shape[1]), dtype=weight.dtype, device="cpu")


def _projected(values: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return torch.zeros((*values.shape[:-1], weight.shape[0]), dtype=weight.dtype, device="cpu")
