"""Emitted methods: their plans, their blobs, and facts about them. This module imports nothing that lowers or emits."""

from __future__ import annotations

from dataclasses import dataclass

from executorch.exir.schema import ExecutionPlan

from etbuild.emit.shared_buffers import Buffers
from etbuild.lower.blobs import Blob, BlobRequest, Claims
from etbuild.lower.weight_sharing import WeightReader
from etbuild.results import MethodGraph, NonFiniteWeight, OperatorCounts


@dataclass(frozen=True)
class TaggedWeight:
    """A weight with a shard that portable operators read.

    Attributes:
        shard: The shard.
        identity: Its dtype, shape and content: see `weight_sharing.identity`.
        written: Whether the method writes to it.
    """

    shard: str
    identity: str
    written: bool


@dataclass(frozen=True)
class MethodFacts:
    """Facts about an emitted method.

    Attributes:
        operators: The numbers of its operators.
        graph: Its graph, for people.
        readers: The readers of its weights.
        tagged: The weights with a shard that portable operators read, by name.
        trained: The names of the weights that it trains.
        buffers: Its buffers, if methods of the program share buffers that they write to; else None.
        instructions: For each instruction, the names of its nodes in the exported graph, as far as they are known.
        notes: Notes about it for the report.
    """

    operators: OperatorCounts
    graph: MethodGraph
    readers: list[WeightReader]
    tagged: dict[str, TaggedWeight]
    trained: list[str]
    buffers: Buffers | None
    instructions: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class Emitted:
    """Methods that were emitted together. Indices in `plans` count the blobs of each kind.

    Attributes:
        plans: The execution plan of each method, in the order of their names. Plans of constant methods that
            ExecuTorch adds for training follow.
        constants: Content of constants in the program. As in a program, index 0 is empty.
        mutable: Initial content of buffers that methods write to. Index 0 is empty.
        delegates: The output of the backends.
        external: Content of constants in named data.
        external_names: For each shard, the index of each constant in `external`, by name.
        requests: The blobs of named data that delegates store, by key.
        claims: For each key of the named data, the shards that claim it.
        compares_content: Whether `claims` depends on which blobs and weights have equal content.
        non_finite: The weights with elements that are NaN or infinite.
        facts: The facts of each method, by name.
        bound: Whether a checkpoint was bound to it. Then it may have equal blobs that a full lowering would merge.
    """

    plans: list[ExecutionPlan]
    constants: list[Blob]
    mutable: list[Blob]
    delegates: list[Blob]
    external: list[Blob]
    external_names: dict[str, dict[str, int]]
    requests: list[tuple[str, BlobRequest]]
    claims: Claims
    compares_content: bool
    non_finite: dict[str, NonFiniteWeight]
    facts: dict[str, MethodFacts]
    bound: bool = False
