"""Compiles a graph module when it is called, and not after each pass.

Every pass ends with `GraphModule.recompile`: the graph is printed as Python and compiled. Passes and interpreters read
the graph; of tens of thousands of compiled versions a few hundred are ever called. PyTorch has `_LazyGraphModule` for
this, which has to be chosen where a module is made, and which XNNPACK's upsample pass does not survive.

The code of a module is a function of its graph and reaches no program, so that it can as well be made later: then from
the graph as it is, which is what a `recompile` in between would have done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from executorch.exir.backend import backend_api
from torch.fx import GraphModule
from torch.fx import graph_module as fx

from etbuild.patching import replaced

_recompile, _reduce = GraphModule.recompile, GraphModule.__reduce__


class _CodeOnDemand:
    """What `recompile` returns: compiles when a caller looks into it, as pickling does."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(_recompile(self._module), name)


class _ForwardOnDemand:
    """Stands where the compiled `forward` will: torch.export looks at its signature too, and names inputs after it."""

    def __get__(self, module: GraphModule | None, cls: type[GraphModule]) -> Any:
        if module is None:
            return self
        _recompile(module)  # puts a compiled `forward` in the place of this
        return module.forward


def _mark_stale(module: GraphModule) -> _CodeOnDemand:
    """Takes the place of `GraphModule.recompile`, and does all that it does except to compile."""
    codegen = module._graph._codegen
    if isinstance(codegen, fx._PyTreeCodeGen):
        module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    cls = type(module)  # every graph module has a class of its own
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
    _get_code(module)  # what is pickled is the code
    reduced: tuple[Any, ...] = _reduce(module)
    return reduced


_partition = backend_api._create_partitions_in_graph_module


def _partition_without_printing(*arguments: Any, **keywords: Any) -> Any:
    """It formats debug messages that hold the whole module, whether or not someone reads them."""
    with replaced(GraphModule, "__str__", object.__repr__):
        return _partition(*arguments, **keywords)


@contextlib.contextmanager
def compile_on_demand() -> Iterator[None]:
    """A module that was made inside and lives on compiles when it is called."""
    with (
        replaced(GraphModule, "recompile", _mark_stale),
        replaced(GraphModule, "_code", property(_get_code, _set_code)),
        replaced(GraphModule, "__reduce__", _reduce_compiled),
        replaced(backend_api, "_create_partitions_in_graph_module", _partition_without_printing),
    ):
        yield
