"""Binding, writing and comparing import no code that lowers, and all is as usual when something uses that code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IMPORTS = """\
import contextlib, gc, json, sys
import torch
from etbuild import switches
with switches.on("importing_without_lowering") if WAITS else contextlib.nullcontext():
    import executorch.runtime
    from etbuild.emit import emit_program
    from etplugins.templates import method_archive
    from executorch.exir.emit import _emitter
    from torch.export.pt2_archive import _package
"""
LOWERS = """
from etbuild.lower import lower_methods
from executorch.exir import to_edge_transform_and_lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
import torch._dynamo, torch._inductor.config
import torch._functorch.aot_autograd
module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
torch.nn.init.ones_(module[0].weight), torch.nn.init.zeros_(module[0].bias)
exported = torch.export.export(module, (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("n", max=8)},))
edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
program = edge.to_executorch().buffer
"""


def run(code: str, *, waits: bool) -> Any:
    """What a new process prints as JSON at its end."""
    command = [sys.executable, "-c", f"WAITS = {waits}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_writes_programs_imports_no_passes_and_no_compiler() -> None:
    names = run(IMPORTS + "print(json.dumps([*sys.modules]))", waits=True)
    of_exir = ("executorch.exir.program", "executorch.exir.pass_base", "executorch.backends", "torchao")
    wrong = (*of_exir, "torch._dynamo.convert_frame", "torch._inductor.lowering", "torch._functorch.aot_autograd")
    assert [name for name in names if name.startswith(wrong)] == []


SAVES = """
import sys, torch
class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
torch.export.save(torch.export.export(Branch(), (torch.ones(3),)), sys.argv[1])
"""
READS = """
import torch
from torch.export.pt2_archive._package import load_pt2
from etplugins.accelerate.import_later import waiting
with switches.on("loading"):
    program = load_pt2(PATH).exported_programs["model"]
waited = waiting()
value = program.module()(torch.zeros(3)).tolist()
print(json.dumps([value, "torch._inductor" in waited]))
"""


def test_reading_a_method_leaves_inductor_waiting(tmp_path: Path) -> None:
    path = tmp_path / "method.pt2"
    subprocess.run([sys.executable, "-c", SAVES, path], check=True)
    value, waited = run(f"{IMPORTS}PATH = {str(path)!r}{READS}", waits=True)
    assert value == [1.0, 1.0, 1.0]
    assert waited


NAMES = """
from etplugins.accelerate import import_later
def lost_in(name):
    found = []
    for stand_in in sys.modules[name].__spec__.loader_state.stand_ins:
        importer = object.__getattribute__(stand_in, "importer")
        holders = [each for each in gc.get_referrers(stand_in) if isinstance(each, (dict, tuple))]
        found += [str(each) for each in holders if each is not importer and "return" not in each]  # no annotations
    return found
waited = import_later.waiting()
lost = {name: found for name in waited if (found := lost_in(name))}
"""
SHOWN = """
assert not import_later.waiting()
found = {
    name: [key for key, value in vars(module).items() if not isinstance(value, type(sys)) and key[:2] != "__"]
    for name, module in sys.modules.items()
    if name.startswith(("executorch.", "torch."))
}
stand_ins = [f"{name}.{key}" for name, module in sys.modules.items() for key, value in list(vars(module).items())
             if type(value) is import_later._StandIn]
print(json.dumps([waited, lost, stand_ins, found, __import__("hashlib").sha256(program).hexdigest()]))
"""


@pytest.mark.long("import-later")
def test_everything_is_as_usual_when_methods_are_lowered_afterwards() -> None:
    waited, lost, stand_ins, names, program = run(IMPORTS + NAMES + LOWERS + SHOWN, waits=True)
    nothing, *_, usual, expected = run(IMPORTS + NAMES + LOWERS + SHOWN, waits=False)
    assert {"executorch.exir", "executorch.exir.passes", "torch._dynamo"} <= {*waited}
    assert (nothing, lost, stand_ins) == ([], {}, [])
    assert {name: keys for name, keys in names.items() if {*keys} != {*usual.get(name, [])}} == {}
    assert program == expected
