"""Collects what the page of a program shows, from the facts of a build or from any `.pte`.

Strings of files are hostile: `page.render` escapes all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from etbuild.errors import counted
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.results import (
    ArtifactFacts,
    BlobWeights,
    GraphNode,
    Index,
    LoweringFacts,
    MemoryPlan,
    MethodGraph,
    MethodSummary,
    ProgramFile,
    ProgramMethod,
    Report,
    Sharing,
    TensorValue,
    Value,
)
from etkit.inspection import program_diff
from etkit.inspection.blob_names import NOT_KNOWN
from etkit.inspection.page import treemap
from etkit.inspection.profile import Profile
from etkit.kept_results import Results
from etkit.tables import size, value_text

_MOST_FILES = 4  # the top of a page names at most so many files
MOST_NODES = 5000  # a graph with more nodes is drawn without the inside of its blocks


@dataclass(frozen=True)
class Difference:
    """What differs from another program.

    Attributes:
        other: The name of the other program.
        sections: The differences in each section, by its heading: where each is, and what it is. Empty if
            there are none.
    """

    other: str
    sections: dict[str, list[tuple[str, str]]]


def difference(other: Path, program: Path, index: Path | None) -> Difference:
    """What differs from another program: a `.pte`, an index, or a directory with one. With a `.pte`, this `.pte` is
    compared, otherwise its index.

    Raises:
        InputError: A file is damaged, or the two are of different kinds.
    """
    compared = program if other.suffix == ".pte" or index is None else index
    differing = program_diff.compare(program_diff.facts(other), program_diff.facts(compared))
    sections = {
        title: [(where, what) for where, what, _ in program_diff.rows(changes)]
        for title, changes in program_diff.by_section(differing).items()
    }
    return Difference(other.name or str(other), sections)


@dataclass(frozen=True)
class Operator:
    """An operator that no backend took, once for each place that calls it.

    Attributes:
        operator: Its name.
        layer: The module that calls it.
        why: Why no backend took it.
        where: The line of the model; empty if it is not known.
        count: How many of its calls these are.
    """

    operator: str
    layer: str
    why: str
    where: str
    count: int


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that is stored quantized."""

    layer: str
    weight: str
    stored: str
    scheme: str


@dataclass(frozen=True)
class MethodCard:
    """The card of a method.

    Attributes:
        name: Its name.
        inputs: Its inputs, such as `float32[1, 3, 64, 64]`.
        outputs: Its outputs.
        example: The example inputs of the manifest as JSON; empty if they are not known.
        call: A call of the method in Python.
        delegates: For each backend, the number of its calls.
        delegated: How many operators backends took; empty if the file does not say it.
        memory: The sizes of the planned arenas.
        fallback: The operators that no backend took.
        computed: What the build has computed in place of the method; empty for nothing.
        quantized: The weights that are stored quantized.
        plan: The planned memory over time.
        graph: The graph, as `page.js` reads it.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    example: str
    call: str
    delegates: dict[str, int]
    delegated: str
    memory: list[str]
    fallback: list[Operator]
    computed: str
    quantized: list[QuantizedWeight]
    plan: MemoryPlan
    graph: dict[str, Any]


@dataclass(frozen=True)
class PageContent:
    """What a page shows.

    Attributes:
        name: The name of the program.
        summary: The facts at the top: name, value, and a note.
        facts: Facts about the whole program, by name.
        methods: The cards.
        layers: The bytes of the weights by layer, for the treemap; empty if they are not known.
        blobs: The bytes of the files by blob, for the treemap.
        duplicates: Lines about the weights that are stored more than once.
        checks: The checks of the manifest: what was measured, the limit and the value.
        results: The results of tests and samples: what was tested, what came of it, and what was measured.
        notes: The notes of the build.
        constants: The values of the constant methods.
        provenance: Tables with versions and digests, by their headings.
        difference: The differences from another program; None if there is none to compare with.
        profile: Where the time of a method goes; None if it was not measured.
    """

    name: str
    summary: list[tuple[str, str, str]]
    facts: dict[str, str]
    methods: list[MethodCard]
    layers: list[treemap.Group]
    blobs: list[treemap.Group]
    duplicates: list[str] = field(default_factory=list)
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    results: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, dict[str, str]] = field(default_factory=dict)
    difference: Difference | None = None
    profile: Profile | None = None


def of_build(
    report: Report,
    index: Index,
    lowering: LoweringFacts,
    lines: SourceLines = NO_LINES,
    difference: Difference | None = None,
    results: Results | None = None,
) -> PageContent:
    """What the page of a build shows.

    Args:
        report: The report.
        index: The index.
        lowering: The facts of the lowering.
        lines: The lines of the sources.
        difference: What differs from another program.
        results: The results of its tests; None if there are none.
    """
    plan = index["inputs"]["plan"]
    program = lowering["program"]
    pte = next(each for each in index["artifacts"] if each["kind"] == "program")
    methods = [
        _method(
            name,
            program["methods"][name],
            lowering["graphs"][name],
            lowering["memory"][name],
            _Source(pte["file"], plan["methods"][name], lines),
        )
        for name in sorted(lowering["graphs"])
    ]
    weights = treemap.weights(lowering["graphs"], lowering["sharing"])
    modules = treemap.modules(weights)
    return PageContent(
        name=index["name"],
        summary=[_total(index["artifacts"]), _delegated(lowering["graphs"]), *_sizes(program["methods"])],
        facts={"program": f"{pte['file']}, {size(pte['size'])}", "sha256": pte["sha256"], **_facts(index)},
        methods=methods,
        layers=treemap.layers(weights, modules),
        blobs=treemap.blobs(program["bytes"], lowering["named_data"], lowering["blob_weights"], modules),
        duplicates=_duplicates(lowering["sharing"]),
        checks=[
            (f"{check['check']} {check.get('of', '')}".strip(), _number(check["limit"]), _number(check["actual"]))
            for check in report["checks"]
        ],
        results=_results(results),
        notes=list(report.get("notes", [])),
        constants={name: json.dumps(value) for name, value in sorted(report["constant_methods"].items())},
        provenance=_provenance(index),
        difference=difference,
    )


def of_program(
    facts: ProgramFile,
    graphs: Mapping[str, MethodGraph],
    memory: Mapping[str, MemoryPlan],
    index: Index | None = None,
    known: BlobWeights = NOT_KNOWN,
    difference: Difference | None = None,
    results: Results | None = None,
) -> PageContent:
    """What the page of any `.pte` shows.

    Args:
        facts: The result of `program_file.describe`.
        graphs: The graph of each method.
        memory: The planned memory of each method.
        index: The index of the build that made the file, if it is known.
        known: The weights that its blobs are made of, if they are known.
        difference: What differs from another program.
        results: The results of its tests; None if there are none.
    """
    plans = index["inputs"]["plan"]["methods"] if index is not None else {}
    expected = dict.fromkeys(facts["external_keys"], "expected in named data")
    elsewhere = "the named data is in other files" if expected else ""
    return PageContent(
        name=facts["file"],
        summary=[
            ("total size", size(facts["size"]), elsewhere) if index is None else _total(index["artifacts"]),
            _calls(facts["methods"]),
            *_sizes(facts["methods"]),
        ],
        facts={
            "program": f"{facts['file']}, {size(facts['size'])}",
            "sha256": facts["sha256"],
            **(_facts(index) if index is not None else {}),
        },
        methods=[
            _method(name, method, graphs[name], memory[name], _Source(facts["file"], plans.get(name, {}), NO_LINES))
            for name, method in facts["methods"].items()
        ],
        layers=[],
        blobs=treemap.blobs(
            facts["bytes"], {}, known, treemap.modules(treemap.weights_of_blobs(facts["bytes"], known))
        ),
        results=_results(results),
        provenance={"named data": expected, **(_provenance(index) if index is not None else {})},
        difference=difference,
    )


def _results(results: Results | None) -> list[tuple[str, str, str]]:
    """The results of tests as rows."""
    return [(each.name, each.state, each.detail) for each in results.results] if results is not None else []


def _total(artifacts: Iterable[ArtifactFacts]) -> tuple[str, str, str]:
    files = [each for each in artifacts if each["kind"] in ("program", "named_data")]
    listed = ", ".join(f"{each['file']} {size(each['size'])}" for each in files)
    note = listed if len(files) < _MOST_FILES else f"{len(files)} files"
    return "total size", size(sum(each["size"] for each in files)), note


def _delegated(graphs: Mapping[str, MethodGraph]) -> tuple[str, str, str]:
    counts = [_taken(graph) for graph in graphs.values()]
    taken, operators = (sum(numbers) for numbers in zip((0, 0), *counts, strict=True))
    share = f"{100 * taken / operators:.0f} %" if operators else "no operators"
    return "delegated", share, f"{taken} of {counted(operators, 'operator')}"


def _calls(methods: Mapping[str, ProgramMethod]) -> tuple[str, str, str]:
    """How often a program calls delegates. A program does not say how many operators these took."""
    calls = sum(sum(method["delegates"].values()) for method in methods.values())
    others = sum(sum(method["operators"].values()) for method in methods.values())
    return "delegated", counted(calls, "call"), f"beside {counted(others, 'call')} of operators"


def _sizes(methods: Mapping[str, MethodSummary]) -> list[tuple[str, str, str]]:
    planned = {name: sum(method["memory"]) for name, method in methods.items()}
    run = [name for name, method in methods.items() if method["memory"] or method["delegates"]] or list(planned)
    largest = max(planned, key=lambda name: planned[name], default="")
    return [
        ("methods", str(len(run)), ", ".join(run)),
        ("planned memory", size(planned.get(largest, 0)), f"of {largest}, the most"),
    ]


def _taken(graph: MethodGraph) -> tuple[int, int]:
    """How many operators of a graph backends took, and how many it has."""
    operators = [node for node in graph["nodes"] if node["operator"] not in ("input", "output")]
    return sum("block" in node for node in operators), len(operators)


def _facts(index: Index) -> dict[str, str]:
    return {"key": index["key"], **dict(sorted(index["versions"].items()))}


def _provenance(index: Index) -> dict[str, dict[str, str]]:
    toolchain = index["inputs"]["toolchain"]
    packages = {"etbuild": toolchain["driver"], **toolchain["distributions"]}
    return {
        "artifacts": {each["file"]: f"{size(each['size'])}, {each['sha256']}" for each in index["artifacts"]},
        "sources": dict(sorted(index["inputs"]["sources"].items())),
        "data": dict(sorted(index["inputs"]["data"].items())),
        "packages": {name: f"{each['version']}, {each['sha256']}" for name, each in sorted(packages.items())},
    }


@dataclass(frozen=True)
class _Source:
    """Where a method comes from: the file of its program, its plan (empty if not known) and the lines of the model."""

    file: str
    plan: Mapping[str, Any]
    lines: SourceLines


def _method(
    name: str, method: Mapping[str, Any], graph: MethodGraph, memory: MemoryPlan, source: _Source
) -> MethodCard:
    where = {node: str(lines[0]) for node, lines in source.lines.of_method(name).items()}
    backends = [entry["backend"] for entry in source.plan.get("partitioners", ())]
    why = [_why(node, backends, bool(source.plan)) for node in graph["nodes"]]
    example = [*source.plan.get("example_inputs", ())]
    given = source.plan.get("example_kwargs", {})
    taken, operators = _taken(graph)
    return MethodCard(
        name=name,
        inputs=[_value(value) for value in method["inputs"]],
        outputs=[_value(value) for value in method["outputs"]],
        example=json.dumps({"inputs": example, **({"kwargs": given} if given else {})}, indent=1) if example else "",
        call=_call(source.file, name, method["inputs"]),
        delegates=dict(method["delegates"]),
        delegated=f"{taken} of {counted(operators, 'operator')}"
        if any("name" in each for each in graph["nodes"])
        else "",
        memory=[size(count) for count in method["memory"]],
        fallback=_fallback(graph, where, why),
        computed=_computed(graph),
        quantized=_quantized(graph),
        plan=memory,
        graph=_drawn(graph, where, why),
    )


def _value(value: Value) -> str:
    return value_text(value) + (f", dimensions in memory: {value['dim_order']}" if "dim_order" in value else "")


def _call(file: str, method: str, inputs: Iterable[Value]) -> str:
    """Python code that calls a method. `open_program` finds the named data, without which the runtime crashes."""
    arguments = [
        f"torch.zeros({value['shape']}, dtype=torch.{value['dtype']}){_format(value)}"
        if "dtype" in value
        else repr(value["value"])
        for value in inputs
    ]
    return (
        "import etbuild\nimport torch\n\n"
        f"program = etbuild.open_program({file!r})\n"
        f"program.method({method!r})({', '.join(arguments)})"
    )


def _format(value: TensorValue) -> str:
    """The call that gives a tensor the format in which a method reads it."""
    name = {4: "channels_last", 5: "channels_last_3d"}.get(len(value["shape"])) if "dim_order" in value else None
    return f".to(memory_format=torch.{name})" if name else ""


def _why(node: GraphNode, backends: list[str], known: bool) -> str:
    """Why no backend took an operator, if it is known. Empty for all other nodes."""
    if "block" in node or node["operator"] in ("input", "output"):
        return ""
    if node.get("why_not"):
        return "; ".join(node["why_not"])
    if not known:
        return ""
    if not backends:
        return "the method names no partitioner"
    return f"{' and '.join(dict.fromkeys(backends))} did not take it, and gave no reason"


def _fallback(graph: MethodGraph, where: Mapping[str, str], why: Sequence[str]) -> list[Operator]:
    calls = Counter(
        (node["operator"], node.get("layer", ""), reason, where.get(node.get("name", ""), ""))
        for node, reason in zip(graph["nodes"], why, strict=True)
        if "block" not in node and node["operator"] not in ("input", "output")
    )
    return [Operator(*key, count) for key, count in calls.items()]


def _computed(graph: MethodGraph) -> str:
    """The operators that a method does not call because their results are always the same."""
    computed = cast("Mapping[str, Any]", graph).get("computed")
    if computed is None:
        return ""
    operators = counted(sum(computed["operators"].values()), "operator")
    return f"{operators}, as {counted(computed['constants'], 'constant')} of {size(computed['bytes'])}"


def _quantized(graph: MethodGraph) -> list[QuantizedWeight]:
    rows = {}
    for node in graph["nodes"]:
        for number in node.get("weights", ()):
            weight = graph["weights"][number]
            if "quantization" in node and len(weight["shape"]) > 1:
                settings = node["quantization"]
                scheme = f"{node['operator']} " + ", ".join(f"{name} {value}" for name, value in settings.items())
                layer = node.get("layer", "") or weight["name"].rpartition(".")[0]
                stored = f"{weight['dtype']}{weight['shape']}"
                rows[layer, weight["name"]] = QuantizedWeight(layer, weight["name"], stored, scheme)
    return list(rows.values())


def _drawn(graph: MethodGraph, where: Mapping[str, str], why: Sequence[str]) -> dict[str, Any]:
    """The graph in the form that `page.js` reads: a list holds each text once, and nodes name texts by number.

    In a graph with too many nodes, each block is drawn as one node.
    """
    whole = len(graph["nodes"]) <= MOST_NODES
    texts: dict[str, int] = {}
    numbers: dict[int, int] = {}  # for each node, the number of its drawn node
    blocks: dict[int, int] = {}
    nodes: list[list[Any]] = []
    edges: dict[tuple[int, int], None] = {}
    for old, node in enumerate(graph["nodes"]):
        block = node.get("block", -1)
        if whole or block < 0 or block not in blocks:
            name = node.get("name", "")
            shown = [node["operator"], name, node.get("layer", ""), where.get(name, ""), why[old]]
            if not whole and block >= 0:
                shown = [graph["blocks"][block]["backend"], "", "", "", ""]
            numbers[old] = len(nodes)
            nodes.append([*(texts.setdefault(text, len(texts)) for text in shown), block])
            if block >= 0:
                blocks[block] = numbers[old]
        else:
            numbers[old] = blocks[block]
        edges.update({(numbers[each], numbers[old]): None for each in node["inputs"] if numbers[each] != numbers[old]})
    return {
        "texts": list(texts),
        "nodes": nodes[:MOST_NODES],
        "edges": [[start, end] for start, end in edges if max(start, end) < MOST_NODES],
        "blocks": [[block["backend"], size(block["bytes"])] for block in graph["blocks"]],
        "hidden": max(0, len(nodes) - MOST_NODES),
        "whole": whole,
    }


def _duplicates(sharing: Sharing) -> list[str]:
    return [
        f"{entry['weight']}: {entry['copies']} copies, {size(entry['bytes'])} too many ({'; '.join(entry['readers'])})"
        for entry in sharing["duplicates"]
    ]


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
