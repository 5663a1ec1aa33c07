"""Compiles a graph module when it is called, instead of after each pass.

Every pass ends with `GraphModule.recompile`, which prints the graph as Python and compiles it. But passes and
interpreters read the graph: only a few hundred of tens of thousands of compiled versions are ever called. PyTorch has
`_LazyGraphModule` for this, but it must be chosen when a module is created, and XNNPACK's upsample pass fails with it.

The code of a module depends only on its graph and does not become part of a program. So it can be made later, from the
graph at that time: a `recompile` then gives the same code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule
from torch.fx import graph_module as fx

from etbuild.patching import replaced

_recompile, _reduce = GraphModule.recompile, GraphModule.__reduce__


class _CodeOnDemand:
    """The result of `recompile`. It compiles when an attribute is read, for example by pickling."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(_recompile(self._module), name)


class _ForwardOnDemand:
    """Replaces `forward` until it is compiled. torch.export also reads its signature, to name inputs."""

    def __get__(self, module: GraphModule | None, cls: type[GraphModule]) -> Any:
        if module is None:
            return self
        _recompile(module)  # this replaces the object by a compiled `forward`
        return module.forward


def _mark_stale(module: GraphModule) -> _CodeOnDemand:
    """Replaces `GraphModule.recompile`. Does everything that it does, except compiling."""
    codegen = module._graph._codegen
    if isinstance(codegen, fx._PyTreeCodeGen):
        module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    cls = type(module)  # every graph module has its own class
    cls.forward = _ForwardOnDemand()
    if "_wrapped_call" not in vars(cls):
        cls._wrapped_call = fx._WrappedCall(cls, vars(cls).get("__call__"))
    cls.__call__ = _call
    vars(module).pop("_code", None)
    return _CodeOnDemand(module)


def _call(module: Any, *arguments: Any, **keywords: Any) -> Any:
    return module._wrapped_call(module, *arguments, **keywords)


def _get_code(module: GraphModule) -> str:
    if "_code" not in vars(module):
        _recompile(module)
    code: str = vars(module)["_code"]
    return code


def _set_code(module: GraphModule, code: str) -> None:
    vars(module)["_code"] = code


def _reduce_compiled(module: GraphModule) -> tuple[Any, ...]:
    _get_code(module)  # pickling stores the code
    reduced: tuple[Any, ...] = _reduce(module)
    return reduced


@contextlib.contextmanager
def compile_on_demand() -> Iterator[None]:
    """Returns a context manager in which graph modules compile when they are called. Modules that still exist
    afterwards do so too."""
    with (
        replaced(GraphModule, "recompile", _mark_stale),
        replaced(GraphModule, "_code", property(_get_code, _set_code)),
        replaced(GraphModule, "__reduce__", _reduce_compiled),
    ):
        yield
