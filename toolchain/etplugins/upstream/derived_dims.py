"""Lets ExecuTorch lower a saved method with derived dimensions, such as multiples of another dimension.

Limit: `derived-dimensions`.
"""

from __future__ import annotations

from torch._export.utils import _get_shape_env_from_gm
from torch.export import ExportedProgram


def forget_ranges(program: ExportedProgram) -> None:
    """Removes the ranges of derived dimensions, such as `8*s0`, from the symbols of a loaded program.

    torch 2.13.0 reads each such expression back as a symbol, and then cannot decompose the program ("expected
    sympy.Symbol"). The ranges of the symbols imply these ranges, and `range_constraints` still has them.
    """
    shape_env = _get_shape_env_from_gm(program.graph_module)
    if shape_env is not None:
        for derived in [symbol for symbol in shape_env.var_to_range if not symbol.is_Symbol]:
            del shape_env.var_to_range[derived]
