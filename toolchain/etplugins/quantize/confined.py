"""Confines a quantizer to what it may quantize: floating-point numbers that a scale fits, and the operators and
submodules that its options name.

ExecuTorch's quantizers have no switch in common for this. All of them write annotations into nodes, so this module
takes back annotations, whoever wrote them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    QuantizationAnnotation,
    Quantizer,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY as ANNOTATION

from etbuild.errors import BuildError, DocumentPath, InputError, did_you_mean
from etplugins.edges.facts import MOVES, operator_name
from etplugins.quantize import unfit

_KIND = "etbuild_kind"
"""The key in a node's custom metadata for the operator that it had before a quantizer replaced it."""
_OF_ARM = ("ArmAnnotationInfo", "_arm_disallow_tfa")
"""The other places of an annotation of Arm's quantizers: in the custom metadata, and in the metadata."""

_Annotations = dict[Node, QuantizationAnnotation]


@dataclass(frozen=True)
class Limits:
    """What a quantizer may quantize.

    Attributes:
        operators: The names of operators, such as `conv2d`; None for all.
        modules: The names of submodules; None for all.
        leave_out: The names of submodules whose operators it leaves out.
        path: The document path of the options.
    """

    operators: Collection[str] | None = None
    modules: Collection[str] | None = None
    leave_out: Collection[str] = ()
    path: DocumentPath = field(default=(), compare=False)

    @classmethod
    def of_options(cls, options: Mapping[str, Any], path: DocumentPath) -> Limits:
        """The limits in the options of a quantizer at a document path."""
        return cls(options.get("operators"), options.get("modules"), options.get("leave_out", ()), path)

    @property
    def are_none(self) -> bool:
        """Whether the quantizer may quantize everything."""
        return self.operators is None and self.modules is None and not self.leave_out

    def check_modules(self, model: GraphModule, submodules: Collection[str]) -> None:
        """Fails if a named submodule does not exist: a misspelt one would leave out nothing.

        Args:
            model: The graph of a method.
            submodules: The names of the module's submodules. The method need not call all of them.
        """
        called = {part for node in model.graph.nodes for path in _stack(node) for part in _parts(path)}
        known = called.union(submodules) - {""}
        for option in ("modules", "leave_out"):
            for index, name in enumerate(getattr(self, option) or ()):
                if name not in known:
                    hint = did_you_mean(name, known) or "the model has no submodules"
                    raise InputError.at((*self.path, option, index), f"the model has no submodule `{name}`", hint)

    def allow(self, node: Node) -> bool:
        """Whether the quantizer may quantize an operator."""
        named = self.operators is None or _kind(node) in self.operators
        return named and (self.modules is None or _is_of(node, self.modules)) and not _is_of(node, self.leave_out)


def confine(quantizer: Quantizer, limits: Limits, batches: Iterable[tuple[Any, ...]] = ()) -> Quantizer:
    """Makes a quantizer annotate only what its limits allow. Returns it: some call their own `annotate`, and ExecuTorch
    asks some for their class, so they stay what they are.

    Args:
        quantizer: The quantizer. It is changed in place.
        limits: What it may quantize.
        batches: Inputs of the method, which show the values that no scale fits.
    """
    annotate_all, transform = quantizer.annotate, quantizer.transform_for_annotation

    def annotate(model: GraphModule) -> Any:
        others = _annotations(model)
        result = annotate_all(model)
        _Confined(model, others, limits, unfit.find(model, batches)).confine()
        return result

    def transform_for_annotation(model: GraphModule) -> GraphModule:
        if limits.operators is not None:
            _note_kinds(model)
        return transform(model)

    quantizer.annotate = annotate
    quantizer.transform_for_annotation = transform_for_annotation
    return quantizer


def forget_kinds(model: GraphModule) -> None:
    """Removes what confining a quantizer has noted in the metadata of nodes. A saved export would keep it."""
    for node in model.graph.nodes:
        node.meta.get("custom", {}).pop(_KIND, None)


def _note_kinds(model: GraphModule) -> None:
    """Notes the operator of each node: quantizers replace some, such as a softmax, by several others."""
    for node in model.graph.nodes:
        if node.op == "call_function" and _KIND not in node.meta.get("custom", {}):
            node.meta["custom"] = {**node.meta.get("custom", {}), _KIND: operator_name(node)}


class _Confined:
    """The annotations that a quantizer has just written.

    Args:
        model: The graph.
        others: The annotations of other quantizers, which were there before.
        limits: What the quantizer may quantize.
        found: What no scale fits.
    """

    def __init__(self, model: GraphModule, others: _Annotations, limits: Limits, found: unfit.Unfit) -> None:
        self._model, self._limits, self._unfit = model, limits, found
        self._all = _annotations(model)
        self._new = {node: each for node, each in self._all.items() if others.get(node) is not each}
        self._specs = dict(_specs(self._all))

    def confine(self) -> None:
        """Takes back the annotations that the limits do not allow, and those of integers and of what no scale fits."""
        if not self._limits.are_none:
            self._check_operators()
            kept = self._kept()
            for node in self._new.keys() - kept:
                _forget(node)
            for node in [each for each in self._new if each in kept and each.op == "output"]:
                self._change(node, lambda source: ANNOTATION in source.meta)
        for node in [each for each in self._new if ANNOTATION in each.meta]:
            if node in self._unfit.sums:
                _forget(node)
            else:
                self._change(node, lambda source: self._is_float(source) and source not in self._unfit.values)
        self._fix_shared()

    def _check_operators(self) -> None:
        """Fails if an operator does not exist, or if the quantizer takes none of its calls."""
        names, path = self._limits.operators or (), (*self._limits.path, "operators")
        calls = [node for node in self._model.graph.nodes if node.op == "call_function"]
        kinds, taken = {_kind(node) for node in calls}, Counter(_kind(node) for node in calls if node in self._all)
        for index, name in enumerate(names):
            if name not in kinds and not hasattr(torch.ops.aten, name):
                hint = did_you_mean(name, kinds)
                raise InputError.at((*path, index), f"PyTorch has no operator `{name}`", hint)
            if name in kinds and name not in taken:
                hint = f"in this method it takes {_listed(taken)}"
                raise InputError.at((*path, index), f"the quantizer does not take `{name}`", hint)
        if names and not taken.keys() & {*names}:
            message = "the method has none of these operators, so nothing would be quantized"
            raise BuildError.at(path, message, f"the quantizer takes {_listed(taken)}")

    def _kept(self) -> set[Node]:
        """The nodes that keep their annotations."""
        kept: set[Node] = set()
        for node in self._new:  # in the order of the graph
            if node.op == "call_function" and self._keeps(node, kept):
                kept.add(node)
        for node in self._new:
            if node.op == "output" or (
                node.op != "call_function" and any(self._reads(user, node) for user in node.users if user in kept)
            ):
                kept.add(node)
        return kept

    def _keeps(self, node: Node, kept: set[Node]) -> bool:
        """Whether a call keeps its annotation. Operators that only move numbers stay with the operator before them, or,
        at the beginning, with one after them."""
        anchor = self._anchor(node)
        if self._limits.allow(anchor) or not (self._new[anchor].input_qspec_map or self._new[anchor].output_qspec):
            return True
        sources = [each for each in anchor.all_input_nodes if each.op != "get_attr"]
        if _kind(anchor) not in MOVES or _is_of(anchor, self._limits.leave_out) or not sources:
            return False
        if sources[0].op == "placeholder":
            return any(self._limits.allow(self._anchor(user)) for user in node.users if user in self._new)
        return sources[0] in kept or (sources[0] in self._all and sources[0] not in self._new)

    def _anchor(self, node: Node) -> Node:
        """The first one of the operators that are quantized together, such as a convolution and its ReLU: between them,
        nothing is observed."""
        while not any(self._reads(node, source) for source in node.all_input_nodes):
            before = [each for each in node.all_input_nodes if each.op == "call_function" and each in self._new]
            if not before or self._new[before[0]].output_qspec is not None:
                break
            node = before[0]
        return node

    def _reads(self, node: Node, source: Node) -> bool:
        """Whether the quantizer observes the value of a node where another one reads it."""
        return node in self._new and self._new[node].input_qspec_map.get(source) is not None

    def _is_float(self, node: Node) -> bool:
        """Whether a value is a floating-point number that `quantize_per_tensor` takes, or unknown."""
        value = node.meta.get("val")
        if value is None and node.op == "get_attr":
            value = _attribute(self._model, str(node.target))
        leaves = pytree.tree_leaves(value)
        dtypes = [each.dtype for each in leaves if isinstance(each, torch.Tensor)]
        return value is None or any(each.is_floating_point and each != torch.float64 for each in dtypes)

    def _change(self, node: Node, observes: Any) -> None:
        """Takes back the parts of an annotation that would observe other values than those that `observes` accepts."""
        annotation = node.meta[ANNOTATION]
        inputs = {source: spec for source, spec in annotation.input_qspec_map.items() if observes(source)}
        output = annotation.output_qspec if node.op == "output" or observes(node) else None
        if len(inputs) == len(annotation.input_qspec_map) and output is annotation.output_qspec:
            return
        if inputs or output is not None:
            node.meta[ANNOTATION] = replace(annotation, input_qspec_map=inputs, output_qspec=output)
        else:
            _forget(node)

    def _fix_shared(self) -> None:
        """Gives a specification of its own to what shared one that was taken back."""
        left = _annotations(self._model)
        places = {place for place, _ in _specs(left)}
        if places == self._specs.keys():
            return
        moved: dict[Any, Any] = {}

        def fixed(place: Any, spec: Any) -> Any:
            if isinstance(spec, DerivedQuantizationSpec):
                return spec if places.issuperset(spec.derived_from) else None
            if not isinstance(spec, SharedQuantizationSpec) or spec.edge_or_node in places:
                return spec
            if spec.edge_or_node not in moved:
                moved[spec.edge_or_node] = place
                return self._root(spec)
            return SharedQuantizationSpec(moved[spec.edge_or_node])

        for node in [each for each in self._new if each in left]:
            annotation = left[node]
            inputs = {source: fixed((source, node), spec) for source, spec in annotation.input_qspec_map.items()}
            inputs = {source: spec for source, spec in inputs.items() if spec is not None}
            output = fixed(node, annotation.output_qspec)
            node.meta[ANNOTATION] = replace(annotation, input_qspec_map=inputs, output_qspec=output)

    def _root(self, spec: Any) -> Any:
        """The specification that another one shares; None if it shares it only with itself."""
        seen = set()
        while isinstance(spec, SharedQuantizationSpec):
            if spec.edge_or_node in seen:
                return None
            seen.add(spec.edge_or_node)
            spec = self._specs.get(spec.edge_or_node)
        return spec


def _annotations(model: GraphModule) -> _Annotations:
    return {node: node.meta[ANNOTATION] for node in model.graph.nodes if ANNOTATION in node.meta}


def _specs(annotations: _Annotations) -> Iterator[tuple[Any, Any]]:
    """Yields the observed places, each with its specification: an edge of two nodes, or a node for its output."""
    for node, annotation in annotations.items():
        yield from (((source, node), spec) for source, spec in annotation.input_qspec_map.items())
        if annotation.output_qspec is not None:
            yield node, annotation.output_qspec


def _forget(node: Node) -> None:
    """Takes back the whole annotation of a node."""
    del node.meta[ANNOTATION]
    noted, disallowed = _OF_ARM
    node.meta.get("custom", {}).pop(noted, None)
    if disallowed in node.meta:
        node.meta[disallowed] = True


def _kind(node: Node) -> str:
    """The name of a node's operator, before a quantizer replaced it."""
    return str(node.meta.get("custom", {}).get(_KIND) or operator_name(node))


def _is_of(node: Node, modules: Collection[str]) -> bool:
    """Whether an operator comes from one of these submodules, or from a submodule inside them."""
    return any(path == name or path.startswith(f"{name}.") for path in _stack(node) for name in modules)


def _stack(node: Node) -> list[str]:
    """The paths of the submodules that call an operator."""
    return [path for path, _ in node.meta.get("nn_module_stack", {}).values()]


def _parts(path: str) -> Iterator[str]:
    """The names that select a submodule: its path, and those of the modules around it."""
    parts = path.split(".") if path else []
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _attribute(model: GraphModule, name: str) -> Any:
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"`{name}` ({count})" for name, count in sorted(counts.items())) or "nothing"
