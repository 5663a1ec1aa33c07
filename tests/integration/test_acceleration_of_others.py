"""Acceleration of programs with backends of others: they see the same as with unmodified ExecuTorch."""

from __future__ import annotations

import pytest

from tests.helpers.manifests import net, one_method

from .conftest import Build

MANIFEST = one_method("[2, 8]", '[{backend: custom, options: {factory: "backend:create"}}]')
MODEL = net(
    "torch.manual_seed(5)",
    "self.linear = torch.nn.Linear(8, 8)",
    create="return Net().eval()",
    forward="return self.linear(x).relu()",
)
BACKEND = """\
import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.pass_base import ExportPass


class Narrow(ExportPass):
    def call(self, module):
        for node in module.graph.nodes:
            if node.op == "placeholder":
                node.meta["val"] = node.meta["val"].to(torch.float16)
        return super().call(module)


def preprocess(program, specs):
    module = program.graph_module
    {how}
    return PreprocessResult(processed_bytes=text.encode())


{name} = type("{name}", (BackendDetails,), {{"preprocess": staticmethod(preprocess)}})


class Takes(Partitioner):
    def __init__(self):
        super().__init__()
        self.delegation_spec = DelegationSpec("{name}", [])

    def partition(self, program):
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        return PartitionResult(tagged_exported_program=program, partition_tags={{"all": self.delegation_spec}})


def create():
    return Takes()
"""
REPLAYS = (
    "module = Narrow()(ExportPass()(module).graph_module).graph_module; "
    "text = ' '.join(f\"{n.name} {n.meta['val'].dtype}\" for n in module.graph.nodes if n.op == 'call_function')"
)


@pytest.mark.parametrize(
    ("name", "how"), [("Prints", "text = str(module)"), ("Reads", "text = module.code"), ("Replays", REPLAYS)]
)
def test_another_backend_sees_the_same_with_and_without_acceleration(name: str, how: str, build: Build) -> None:
    made = [
        build(MANIFEST, *options, model=MODEL, backend=BACKEND.format(name=f"{name}{number}", how=how))
        for number, options in enumerate([("--no-accelerate",), ()])
    ]
    assert [one.code for one in made] == [0, 0], made[1].err
    plain, accelerated = (one.read("net.pte").replace(name.encode() + b"0", name.encode() + b"1") for one in made)
    assert accelerated == plain
