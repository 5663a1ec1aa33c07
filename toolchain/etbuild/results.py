"""Types of the JSON that a build writes: the inputs of a key, the facts of a lowering, the report, and the index.

`schemas/` describes the same files for their readers. A test compares both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, final

if TYPE_CHECKING:
    from typing_extensions import NotRequired

Digests = dict[str, str]
"""sha256 in hex, by name."""
Counts = dict[str, int]
"""Numbers or sizes in bytes, by name."""


class Release(TypedDict):
    """A distribution or the driver: its version, and the sha256 of its files."""

    version: str
    sha256: str


class Driver(Release):
    """The driver: its version, the sha256 of its files that each step of the program runs, and of all of these."""

    steps: Digests


class Python(TypedDict):
    """The Python that runs the driver and the model's code. `startup` is missing if no code runs when Python starts."""

    python: str
    distributions: dict[str, Release]
    startup: NotRequired[Digests]


class Toolchain(Python):
    """The packages that lower a program."""

    driver: Driver


class FileDigests(TypedDict):
    """Digests of the sources by import path, and of the data by name."""

    sources: Digests
    data: Digests


class FilesAndPackages(FileDigests):
    """The files that a build reads, and the top-level names of the packages that its sources import."""

    packages: list[str]


class KeyInputs(FileDigests):
    """Everything that a build depends on. Its digest is the key."""

    schema: str
    plan: dict[str, Any]
    toolchain: Toolchain


class ArtifactFacts(TypedDict):
    """A file of a build: its name, kind, size in bytes and digest. Only named data has a tag."""

    file: str
    kind: str
    size: int
    sha256: str
    tag: NotRequired[str]


@final
class TensorValue(TypedDict):
    """An input or output that is a tensor. The sizes in its shape are upper bounds if it is dynamic. `dim_order` holds
    its dimensions from the outermost one in memory, if it is not row-major."""

    dtype: str
    shape: list[int]
    dynamic: bool
    dim_order: NotRequired[list[int]]


@final
class OtherValue(TypedDict):
    """An input or output that is not a tensor."""

    type: str
    value: Any


Value = TensorValue | OtherValue


class MethodSummary(TypedDict):
    """The inputs and outputs of a method, the number of calls by delegate, and the bytes of its planned memory."""

    inputs: list[Value]
    outputs: list[Value]
    delegates: Counts
    memory: list[int]


class ProgramMethod(MethodSummary):
    """A method of a program. `operators` counts the calls of each kernel."""

    operators: Counts


class BlobSizes(TypedDict):
    """The size in bytes of each blob in a program; by key for named data."""

    constants: list[int]
    mutable: list[int]
    delegates: list[int]
    named_data: Counts


class ProgramFacts(TypedDict):
    """The facts of a program. `external_keys` names the tensors that it expects in named-data files."""

    methods: dict[str, ProgramMethod]
    bytes: BlobSizes
    external_keys: list[str]


class FileHead(TypedDict):
    """The name of a file, its size in bytes and its digest."""

    file: str
    size: int
    sha256: str


@final
class ProgramFile(FileHead, ProgramFacts):
    """A `.pte` and the facts of its program."""

    kind: Literal["program"]


@final
class NamedDataFile(FileHead):
    """A `.ptd` and the size in bytes of each of its blobs, by key."""

    kind: Literal["named_data"]
    named_data: Counts


class OperatorCounts(TypedDict):
    """How often each operator occurs: those that backends took, by backend, and the others."""

    delegated: dict[str, Counts]
    fallback: Counts


class Duplicate(TypedDict):
    """A weight with several copies: the bytes of all except the largest, their number, and the readers of each."""

    weight: str
    bytes: int
    copies: int
    readers: list[str]


class Sharing(TypedDict):
    """How many bytes of weights methods share, and how many are stored more than once."""

    expected_bytes: int
    shared_bytes: int
    duplicate_bytes: int
    duplicates: NotRequired[list[Duplicate]]


class NonFiniteWeight(TypedDict):
    """A weight ("parameter" or "buffer") with the numbers of its NaN, infinite and all elements."""

    kind: str
    nan: int
    infinite: int
    elements: int


class RuntimeLimit(TypedDict):
    """Something that ExecuTorch's runtime cannot do in a method."""

    method: str
    operator: str
    what: str
    hint: str


class GraphNode(TypedDict):
    """A call of an operator in a lowered method, or an input or output of the method (`input`, `output`).

    `inputs` has the numbers of the nodes that it reads. Empty fields are missing. `name`: its name in the exported
    graph. `layer`: the module that calls it. `block`: the number of the block that contains it. `weights`: the numbers
    of the weights that it reads. `why_not`: what partitioners said when they did not take it. `quantization`: the
    settings of an operator that dequantizes.
    """

    operator: str
    inputs: list[int]
    name: NotRequired[str]
    layer: NotRequired[str]
    block: NotRequired[int]
    weights: NotRequired[list[int]]
    why_not: NotRequired[list[str]]
    quantization: NotRequired[dict[str, Any]]


class GraphBlock(TypedDict):
    """A part of a method that one backend has compiled: the backend, and the bytes of its output."""

    backend: str
    bytes: int


class GraphWeight(TypedDict):
    """A weight that a method reads. `bytes` is its size in the module, before a backend packs it. `parameter` is
    missing for a buffer."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    parameter: NotRequired[bool]


class Edge(TypedDict):
    """How an input or output is an integer `n` between `least` and `most`: it stands for `(n - zero_point) * scale`."""

    dtype: str
    scale: float
    zero_point: int
    least: int
    most: int


Edges = list[list[Edge | None]]
GRAPH_NOTES = "etbuild_graph"
"""The key in a placeholder's custom metadata for what a plug-in adds to the description of the graph."""


class MethodGraph(TypedDict):
    """The graph of a lowered method, for people. `nodes` are in the order in which they run. `edges` has those of the
    inputs and of the outputs, each None if it is no integer of a quantized method. `estimates` are by delegate."""

    nodes: list[GraphNode]
    blocks: list[GraphBlock]
    weights: list[GraphWeight]
    edges: NotRequired[Edges]
    estimates: NotRequired[dict[str, dict[str, float]]]


class PlannedTensor(TypedDict):
    """A place in the planned memory of a method, and the first and last instruction that uses it.

    `of` says what writes it: an operator, a backend, `input`, or `state` for a buffer that outlives a call.
    """

    arena: int
    offset: int
    bytes: int
    first: int
    last: int
    of: str


class MemoryPlan(TypedDict):
    """The planned memory of a method over the time of a call, which has a number of instructions."""

    instructions: int
    tensors: list[PlannedTensor]


class WeightDigests(TypedDict):
    """Digests of the weights files, and of the tensors in each."""

    data: Digests
    tensors: dict[str, Digests]


class BlobWeights(TypedDict):
    """The names of the weights that each blob is made of; empty or missing if they are not known.

    `constants` is in the order of the constants in the program. `named_data` has the keys of the blobs, unless the key
    is the name of the weight. The first name is that of the weight that a blob replaces.
    """

    constants: list[list[str]]
    named_data: dict[str, list[str]]


class LoweringFacts(WeightDigests):
    """The facts of a lowering: `NAME.lowering.json`.

    `template` is the digest of the program without the content of its weights. `with_weights` has the methods that were
    lowered with this content, and why: each checkpoint lowers them. `operators`, `graphs`, `instructions` and `memory`
    are by method. `instructions` has the names of each instruction's nodes in the exported graph. `named_data` has the
    size in bytes of each blob by tag and key, and `blob_weights` what blobs are made of.
    """

    schema: str
    artifacts: list[ArtifactFacts]
    program: ProgramFacts
    template: str
    with_weights: dict[str, str]
    operators: dict[str, OperatorCounts]
    graphs: dict[str, MethodGraph]
    instructions: dict[str, list[list[str]]]
    notes: list[str]
    memory: dict[str, MemoryPlan]
    named_data: dict[str, Counts]
    blob_weights: BlobWeights
    sharing: Sharing
    non_finite: dict[str, NonFiniteWeight]
    runtime_limits: list[RuntimeLimit]
    constant_methods: dict[str, Any]


class CheckResult(TypedDict):
    """A check of the manifest with its limit and the measured value; `of` is the method or tag that was measured."""

    check: str
    limit: float
    actual: float
    of: NotRequired[str]


class Refusal(TypedDict):
    """Calls of an operator that no backend took: how many, in which layers, and what partitioners said about them. The
    layers of one kind are one pattern."""

    operator: str
    calls: int
    layers: list[str]
    why_not: str


class ReportedMethod(MethodSummary, total=False):
    """A method in the report. `operators` and `why_not` are missing if the manifest turns them off; `why_not` also if
    no partitioner gave a reason."""

    operators: OperatorCounts
    why_not: list[Refusal]


class LeftInFloats(TypedDict):
    """Weights that are left in floats, those of one kind under one pattern: how many, their bytes, and why."""

    weights: str
    count: int
    bytes: int
    why: str


class ReportedQuantization(TypedDict):
    """The weights of methods that the manifest quantizes: the number of weights with two or more dimensions, how many
    of these are quantized, the bytes of all weights, the bytes of those in floats, and the largest of these."""

    weights: int
    quantized: int
    bytes: int
    float_bytes: int
    in_floats: list[LeftInFloats]


class Total(TypedDict):
    """The number of blobs and their size in bytes."""

    blobs: int
    bytes: int


class ReportedSizes(BlobSizes):
    """The size in bytes of each blob in the program; outside it by tag and key."""

    external: dict[str, Counts]


class ReportedTotals(TypedDict):
    """Replaces `ReportedSizes` if the manifest turns off the list of blobs."""

    constants: Total
    mutable: Total
    delegates: Total
    named_data: Total
    external: dict[str, Total]


class Report(TypedDict):
    """`NAME.report.json`. `notes` and `with_weights` are missing if there are none.

    `blob_weights` is missing if the manifest turns off the list of blobs, `quantization` if it quantizes no method,
    `applications` without `for`, `interface` if `metadata` has no inputs and outputs.
    """

    schema: str
    name: str
    methods: dict[str, ReportedMethod]
    constant_methods: dict[str, Any]
    bytes: ReportedSizes | ReportedTotals
    sharing: Sharing
    checks: list[CheckResult]
    blob_weights: NotRequired[BlobWeights]
    quantization: NotRequired[ReportedQuantization]
    applications: NotRequired[dict[str, Any]]
    interface: NotRequired[dict[str, Any]]
    notes: NotRequired[list[str]]
    with_weights: NotRequired[dict[str, str]]


class BuildInputs(TypedDict):
    """The key of a build, what it is made of, and the digests of the tensors in each weights file."""

    key: str
    inputs: KeyInputs
    tensors: dict[str, Digests]


class Index(BuildInputs):
    """`NAME.index.json`. `named_data` has the digest of each tag's file, or a list of them for a tag with shards.

    `template` is the digest of the program without the content of its weights. `with_weights` is missing if each
    checkpoint can use the template of each method, `edges` if no method has some.
    """

    schema: str
    name: str
    versions: dict[str, str]
    methods: list[str]
    constant_methods: list[str]
    template: str
    artifacts: list[ArtifactFacts]
    named_data: dict[str, str | list[str]]
    edges: NotRequired[dict[str, Edges]]
    with_weights: NotRequired[dict[str, str]]
    interface: NotRequired[dict[str, Any]]
