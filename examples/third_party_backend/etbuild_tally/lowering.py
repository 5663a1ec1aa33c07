"""The backend `tally`, as ExecuTorch sees it: a partitioner, and the code that compiles each partition.

A delegate is a text: the number of each operator in the partition, and the names of its weights. A weight's name is the
digest of its content, so that methods with the same weight store it once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase


class TallyBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        calls = Counter(node.target.name() for node in edge_program.graph.nodes if node.op == "call_function")
        store, names = NamedDataStore(), []
        for _, tensor in sorted(edge_program.state_dict.items()):
            content = bytes(tensor.detach().contiguous().view(-1).numpy())
            names.append(hashlib.sha256(content).hexdigest())
            store.add_named_data(names[-1], content)
        lines = [spec.value.decode() for spec in compile_specs]
        lines += [f"{name} {count}" for name, count in sorted(calls.items())] + names
        return PreprocessResult("\n".join(lines).encode(), data_store_output=store.get_named_data_store_output())


class _Listed(OperatorSupportBase):
    def __init__(self, operators: Collection[str]) -> None:
        self.operators = operators

    def is_node_supported(self, submodules: Any, node: Any) -> bool:
        return node.op == "call_function" and node.target.name() in self.operators


class TallyPartitioner(Partitioner):
    def __init__(self, operators: Collection[str], method: str) -> None:
        super().__init__()
        self.operators = operators
        self.specification = DelegationSpec(TallyBackend.__name__, [CompileSpec("method", method.encode())])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        found = CapabilityBasedPartitioner(
            exported_program.graph_module, _Listed(self.operators), allows_single_node_partition=True
        ).propose_partitions()
        for partition in found:
            for node in partition.nodes:
                node.meta["delegation_tag"] = f"tally{partition.id}"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {f"tally{partition.id}": self.specification for partition in found})
