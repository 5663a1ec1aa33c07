"""Demo backends and partitioners. The compiled result of a backend is JSON that describes its input.

Projects of these tests have this file as a source. An environment variable names the file that records calls.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule

if TYPE_CHECKING:
    from executorch.export import ExportRecipe

# The arguments and the result of `preprocess_multimethod`, by method.
Programs = dict[str, list[ExportedProgram]]
Specs = dict[str, list[list[CompileSpec]]]
Results = dict[str, list[PreprocessResult]]


def record(call: str, backend: str, **facts: object) -> None:
    with Path(os.environ["DEMO_BACKEND_RECORD"]).open("a") as file:
        file.write(json.dumps({"call": call, "backend": backend, **facts}) + "\n")


def operators(program: ExportedProgram) -> list[str]:
    return [node.target._op.name() for node in program.graph.nodes if node.op == "call_function"]


def specs_as_text(specs: list[CompileSpec]) -> list[str]:
    return [f"{spec.key}={spec.value.decode()}" for spec in specs]


def weights(program: ExportedProgram) -> list[str]:
    signature = program.graph_signature
    return sorted([*signature.inputs_to_parameters.values(), *signature.inputs_to_buffers.values()])


def compiled(program: ExportedProgram, specs: list[CompileSpec]) -> tuple[bytes, dict[int, tuple[int]]]:
    """Returns the compiled result of a partition: readable, with the debug handles of its operators."""
    handles = [node.meta["debug_handle"] for node in program.graph.nodes if node.op == "call_function"]
    facts = {"operators": operators(program), "specs": specs_as_text(specs), "weights": weights(program)}
    return json.dumps(facts).encode(), {number: (handle,) for number, handle in enumerate(handles)}


def compiled_together(backend: str, programs: Programs, specs: Specs) -> Results:
    """Compiles all methods, and records that as one call."""
    record(
        "preprocess_multimethod",
        backend,
        operators={method: [operators(each) for each in listed] for method, listed in programs.items()},
        specs={method: [specs_as_text(each) for each in listed] for method, listed in specs.items()},
    )
    return {
        method: [PreprocessResult(*compiled(*each)) for each in zip(listed, specs[method], strict=True)]
        for method, listed in programs.items()
    }


class JointBackend(BackendDetails):
    """Compiles all methods in one call."""

    @classmethod
    def preprocess_multimethod(cls, programs: Programs, specs: Specs) -> Results:
        return compiled_together(cls.__name__, programs, specs)

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError("preprocess_multimethod stands in its place")


class OtherJointBackend(BackendDetails):
    """The same under another name."""

    @classmethod
    def preprocess_multimethod(cls, programs: Programs, specs: Specs) -> Results:
        return compiled_together(cls.__name__, programs, specs)

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError("preprocess_multimethod stands in its place")


class SingleBackend(BackendDetails):
    """Compiles one partition at a time."""

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        record("preprocess", "SingleBackend", operators=operators(program), specs=specs_as_text(specs))
        return PreprocessResult(*compiled(program, specs))


class SharingBackend(BackendDetails):
    """Puts its weights into named data, under their names."""

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        store = NamedDataStore()
        for name in weights(program):
            store.add_named_data(name, program.state_dict[name].detach().numpy().tobytes())
        return PreprocessResult(*compiled(program, specs), store.get_named_data_store_output())


class ClashingBackend(BackendDetails):
    """Uses the same key for everything that it compiles."""

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        store = NamedDataStore()
        store.add_named_data("everything", compiled(program, specs)[0])
        return PreprocessResult(b"", {}, store.get_named_data_store_output())


class OtherClashingBackend(BackendDetails):
    """The same under another name."""

    preprocess = staticmethod(ClashingBackend.preprocess)


class AligningBackend(BackendDetails):
    """Stores one blob for everything that it compiles, under one or several keys, with the alignments in its spec."""

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        keys, alignments, tag = specs[0].value.decode().split()[:3]
        store = NamedDataStoreOutput([b"blob" * 8], {}, {})
        entries = store.pte_data if tag == "-" else store.external_data.setdefault(tag, {})
        for key, alignment in zip(keys.split(","), alignments.split(","), strict=True):
            entries[key] = DataEntry(0, None if alignment == "none" else int(alignment), None)
        return PreprocessResult(b"aligning", {}, store)


class AddingBackend(BackendDetails):
    """Uses one store for all methods, and adds one blob for each, with the alignment in its spec."""

    @classmethod
    def preprocess_multimethod(cls, programs: Programs, specs: Specs) -> Results:
        store = NamedDataStore()
        for listed in specs.values():
            store.add_named_data("key", b"blob" * 8, alignment=int(listed[0][0].value.decode().split()[0]))
        output = store.get_named_data_store_output()
        return {method: [PreprocessResult(b"adding", {}, output)] for method in programs}

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError("preprocess_multimethod stands in its place")


class DamagedBackend(BackendDetails):
    """Returns wrong results, as its spec says."""

    @classmethod
    def preprocess_multimethod(cls, programs: Programs, specs: Specs) -> Results:
        first = min(programs)
        good = {method: [PreprocessResult(b"good") for _ in listed] for method, listed in programs.items()}
        store = NamedDataStore()
        empty = NamedDataStoreOutput([], {"key": DataEntry(0, 1, None)}, {})
        words = NamedDataStoreOutput(["text"], {"key": DataEntry(0, 1, None)}, {})
        wrong: dict[str, Callable[[], Any]] = {
            "nothing": lambda: None,
            "a list": lambda: list(good.values()),
            "no list": lambda: {**good, first: None},
            "fewer": lambda: {**good, first: good[first][:-1]},
            "more": lambda: {**good, first: [*good[first], PreprocessResult(b"more")]},
            "a method less": lambda: {method: good[method] for method in good if method != first},
            "a method more": lambda: {**good, "elsewhere": []},
            "no result": lambda: {**good, first: [None, *good[first][1:]]},
            "text": lambda: {**good, first: [PreprocessResult("text"), *good[first][1:]]},
            "a store": lambda: {**good, first: [PreprocessResult(b"good", {}, store), *good[first][1:]]},
            "no blob": lambda: {**good, first: [PreprocessResult(b"good", {}, empty), *good[first][1:]]},
            "a blob of text": lambda: {**good, first: [PreprocessResult(b"good", {}, words), *good[first][1:]]},
            "good": lambda: good,
        }
        results: Results = wrong[specs[first][0][0].value.decode().split(":")[0]]()
        return results

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError("preprocess_multimethod stands in its place")


class HoldingBackend(BackendDetails):
    """Stores its weights in the compiled result."""

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        held = [program.state_dict[name].detach().numpy().tobytes() for name in weights(program)]
        return PreprocessResult(b"".join(held) + ".".join(operators(program)).encode())


class PairingBackend(BackendDetails):
    """Pairs the partitions of methods, as Core ML and Qualcomm do."""

    @classmethod
    def preprocess_multimethod(cls, programs: Programs, specs: Specs) -> Results:
        if len(set(map(len, programs.values()))) > 1:
            raise ValueError("the same number of partitions is required")
        return compiled_together(cls.__name__, programs, specs)

    @staticmethod
    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError("preprocess_multimethod stands in its place")


class Taker(Partitioner):
    """Partitions the operators that it takes, also those in control flow.

    Neighbours are in one partition; with `separately`, each operator has its own.
    """

    def __init__(self, operators: list[str], backend: str, spec: str, separately: bool) -> None:
        super().__init__()
        self.operators, self.backend, self.prefix, self.separately = operators, backend, spec, separately

    def partition(self, program: ExportedProgram) -> PartitionResult:
        tags: dict[str, DelegationSpec] = {}
        self._tag(program.graph_module, tags)
        tag_constant_data(program)
        return PartitionResult(program, tags)

    def _tag(self, module: GraphModule, tags: dict[str, DelegationSpec]) -> None:
        tag = None
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            name = getattr(node.target, "_op", node.target).__name__.partition(".")[0]
            if name not in self.operators:
                tag = None
                continue
            tag = f"{self.backend}{len(tags)}" if tag is None or self.separately else tag
            node.meta["delegation_tag"] = tag
            tags[tag] = DelegationSpec(self.backend, [CompileSpec("spec", f"{self.prefix}{name}".encode())])
        for _, submodule, _ in get_control_flow_submodules(module):
            self._tag(submodule, tags)


class StateTaker(Taker):
    """Also takes the buffers that its operators write to."""

    def partition(self, program: ExportedProgram) -> PartitionResult:
        result = super().partition(program)
        tag_mutated_buffer(program)
        return result


class Sayer(Taker):
    """Declares the backend that it delegates to, as ExecuTorch's own partitioners do."""

    def __init__(self, operators: list[str], backend: str, spec: str, separately: bool) -> None:
        super().__init__(operators, backend, spec, separately)
        self.delegation_spec = DelegationSpec(backend, [])


class Changer(Taker):
    """Changes the graph, which a partitioner must not do."""

    def partition(self, program: ExportedProgram) -> PartitionResult:
        for node in list(program.graph.nodes):
            if node.op == "call_function" and "sin" in str(node.target):
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)
        return super().partition(program)


def take(operators: list[str], backend: str, spec: str = "", separately: bool = False) -> Partitioner:
    return Taker(operators, backend, spec, separately)


def take_state(operators: list[str]) -> Partitioner:
    return StateTaker(operators, "SingleBackend", "", False)


def say(operators: list[str], backend: str) -> Partitioner:
    return Sayer(operators, backend, "", False)


def recipe(partitioners: list[Any] | dict[str, list[Any]]) -> ExportRecipe:
    """Returns a recipe with partitioners for all methods or by method. Each is a pair of operators and a backend, or
    `xnnpack`."""
    from executorch.export import ExportRecipe, LoweringRecipe

    def each(listed: list[Any]) -> list[Partitioner]:
        return [made(*one) if one != "xnnpack" else xnnpack() for one in listed]

    def made(operators: list[str], backend: str, factory: str = "say") -> Partitioner:
        return {"say": say, "take": take}[factory](operators, backend)

    if isinstance(partitioners, dict):
        by_method = {name: each(listed) for name, listed in partitioners.items()}
        return ExportRecipe(lowering_recipe=LoweringRecipe(partitioners=by_method))
    return ExportRecipe(lowering_recipe=LoweringRecipe(partitioners=each(partitioners)))


def xnnpack() -> Partitioner:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return XnnpackPartitioner()


def change() -> Partitioner:
    return Changer([], "JointBackend", "", False)
