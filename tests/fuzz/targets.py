"""Calls the readers of untrusted files, one function for each reader. For any bytes, a reader may raise only our
errors.

`test_fuzz.py` and `run.py` both call these functions. A target returns if the reader accepts the bytes or reports the
problem with one of our errors. Any other exception is a finding.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from etbuild.errors import EtbuildError, InputError

if TYPE_CHECKING:
    from etbuild.plan.plan import Plan
    from etbuild.plan.step_plans import ExportPlan, MethodPlan
    from etbuild.results import Index
    from etkit.registry.oci.descriptors import Descriptor
    from etkit.registry.oci.package import Package

Target = Callable[[bytes], None]
_NO_MODEL: dict[str, Any] = {"sources": {}, "data": {}, "packages": []}


@functools.cache
def _directory() -> Path:
    """Returns a directory for this process, in memory if the machine has such a directory."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="etbuild-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _file(name: str, data: bytes) -> Path:
    path = _directory() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@functools.cache
def _sound_index() -> Index:
    from tests.unit.indexes import make_index

    return make_index(tensors=1)


@functools.cache
def _sound_facts() -> dict[str, Any]:
    from etkit.inspection import program_diff

    return program_diff.facts(_file("sound.index.json", json.dumps(_sound_index()).encode()))


@contextlib.contextmanager
def _only_our_errors() -> Iterator[None]:
    """Returns a context manager that formats our errors and then ignores them."""
    try:
        yield
    except EtbuildError as error:
        _check(error)


def _check(error: EtbuildError) -> None:
    assert error.problems
    assert all(line.isprintable() for line in str(error).split("\n"))


def _check_places(error: InputError, data: bytes) -> None:
    """Checks that each problem has a position in the manifest, and one line."""
    lines = 1 + sum(data.count(end) for end in (b"\n", b"\r", b"\xc2\x85", b"\xe2\x80"))
    for problem in error.problems:
        assert problem.position is not None, problem
        assert problem.position.file == "model.yaml"
        assert 1 <= problem.position.line <= lines
        assert "\n" not in problem.message


def fuzz_manifest(data: bytes) -> None:
    """A manifest with its variants, up to their plans. Each problem has a position in the file."""
    from etbuild.files import digests
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    path = _file("model.yaml", data)
    try:
        loaded = validate.load_each(path, "model.yaml")
    except InputError as error:
        _check(error)
        _check_places(error, data)
        return
    for each in loaded:
        whole = from_manifest(each.data)
        _use_plan(whole)
        digests.digest(whole.to_json())


def _use_plan(whole: Plan) -> None:
    _use_export_plan(whole.export_plan)
    _use_lower_plan(whole.lower_plan)
    assert whole.data_names.keys() >= whole.export_plan.data_names.keys()


def _use_export_plan(exporting: ExportPlan) -> None:
    assert type(exporting).from_json(exporting.to_json()) == exporting
    assert [*exporting.callables] == sorted(exporting.callables)
    assert exporting.data_names.keys() >= {each.file for each in exporting.weights}
    assert exporting.carries_content in (True, False)


def _use_lower_plan(lowering: MethodPlan) -> None:
    assert type(lowering).from_json(lowering.to_json()) == lowering
    assert lowering.data_names.keys() >= {each.file for each in lowering.weights}
    assert lowering.used_backends.keys() >= {entry.backend for entry in lowering.partitioners.values()}
    assert set(lowering.sharded_tags) <= set(lowering.tags)
    for name in lowering.methods:
        lowering.of_method(name).to_json()


def fuzz_json(data: bytes) -> None:
    """Any JSON."""
    from etbuild.files import json_file
    from etbuild.files.digests import canonical_json

    with contextlib.suppress(ValueError):
        canonical_json(json_file.parse(data))


def fuzz_plan(data: bytes) -> None:
    """A plan and its parts."""
    from etbuild.plan.plan import Plan
    from etbuild.plan.step_plans import ExportPlan, LowerPlan, MethodPlan, read_plan

    path = _file("plan.json", data)
    with _only_our_errors():
        _use_plan(read_plan(path, Plan))
    with _only_our_errors():
        _use_export_plan(read_plan(path, ExportPlan))
    for kind in (LowerPlan, MethodPlan):
        with _only_our_errors():
            _use_lower_plan(read_plan(path, kind))


def fuzz_positions(data: bytes) -> None:
    """The positions of a manifest's values, which are stored in a file."""
    from etbuild.cli.options import with_positions

    options = argparse.Namespace(positions=_file("positions.json", data), unused_inputs=None, reserved_memory=None)
    with _only_our_errors(), with_positions(options):
        raise InputError.at(("methods", "forward"), "a message")


def fuzz_lines(data: bytes) -> None:
    """The lines of the sources, which are stored in an export or in a file."""
    from etbuild.export.layout import ExportFiles
    from etbuild.inputs import source_lines

    path = _file("lined/lines.json", data)
    lines = ExportFiles.below(path.parent).lines
    for found in (lines.of_node("forward", "mul"), lines.of_operator("forward", "aten::mul.out")):
        _check(InputError.of("a message", source_lines.shown(found)))


def fuzz_index(data: bytes) -> None:
    """An index: explained, compared with another and locked."""
    from etkit import find_index
    from etkit.building import explanation, lockfile
    from etkit.inspection import program_diff

    path = _file("net.index.json", data)
    with _only_our_errors():
        index = find_index.read_index(path)[1]
        list(explanation.tree(index["inputs"]))
        explanation.differences(index, _sound_index())
        explanation.differences(_sound_index(), index)
        explanation.steps_to_run(index, _sound_index())
        lockfile.lock(index)
        list(program_diff.text(program_diff.compare(program_diff.facts(path), _sound_facts())))


def fuzz_report(data: bytes) -> None:
    """A report that an index lists."""
    from etkit.inspection import program_diff

    _file("built/net.report.json", data)
    index, digest = _sound_index(), hashlib.sha256(data).hexdigest()
    artifacts = [{**entry, "sha256": digest} for entry in index["artifacts"] if entry["kind"] == "report"]
    path = _file("built/net.index.json", json.dumps({**index, "artifacts": artifacts}).encode())
    with _only_our_errors():
        list(program_diff.text(program_diff.compare(_sound_facts(), program_diff.facts(path))))


@functools.cache
def _sound_package() -> Package:
    from etkit.registry.oci import package
    from tests.helpers.builds import write_build

    return package.make([write_build(_directory() / "packed", "net", pte=b"old program" * 9)], {}).package


def fuzz_package(data: bytes) -> None:
    """Each document of a package in turn, and the index of a layout."""
    from etkit.registry.oci import layout, package

    sound = _sound_package()

    def load(blob: Descriptor, limit: int) -> bytes:
        if blob.sha256 == replaced:
            return data
        if blob.sha256 not in sound.documents:
            raise InputError.of("the registry has no such blob")
        return sound.documents[blob.sha256]

    [program], [statement] = sound.programs, sound.statements
    for blob in (sound.root, program.manifest, program.index, statement.manifest, statement.blobs[1]):
        replaced = blob.sha256
        with _only_our_errors():
            package.read(sound.root, load, "registry/net:v1")
    _file("layout/oci-layout", b"{}")
    with _only_our_errors():
        layout.root(_file("layout/index.json", data).parent)


def fuzz_delta(data: bytes) -> None:
    """A delta, applied to programs that it may be for."""
    from etkit.registry.oci import delta

    place = _file("delta/delta.json", data).parent
    with _only_our_errors():
        delta.apply(place, _directory() / "packed")


def fuzz_patch(data: bytes) -> None:
    """A patch of a program."""
    from etkit.registry.oci import delta
    from etkit.registry.oci.descriptors import Descriptor

    size = int.from_bytes(data[24:32], "little")
    with _only_our_errors():
        delta.patched(b"old program" * 9, data, Descriptor("file", "0" * 64, min(size, 1 << 16)), "net.pte")


def fuzz_policy(data: bytes) -> None:
    """A policy, asked about a program."""
    from etkit.registry.oci import policy

    with _only_our_errors():
        policy.check(policy.read(_file("policy.yaml", data)), [(_sound_index(), ["https://ci.example.com/1"])])


def fuzz_docker_config(data: bytes) -> None:
    """Docker's config.json, asked for a login."""
    from etkit.registry.oci import logins

    with mock.patch.dict(os.environ, DOCKER_CONFIG=str(_file("docker/config.json", data).parent)):
        for registry in ("registry.example.com", "docker.io"):
            with _only_our_errors():
                logins.find(registry)


def fuzz_lock(data: bytes) -> None:
    """A lockfile."""
    from etkit.building import lockfile

    with _only_our_errors():
        lockfile.check(_file("net.lock.json", data), lockfile.lock(_sound_index()), "update it")


def fuzz_results(data: bytes) -> None:
    """The results of a program, as a page and a summary show them."""
    from etkit import kept_results
    from etkit.inspection.page import content
    from etkit.registry.oci import summary

    path = _file("tested/net.results.json", data)
    with _only_our_errors():
        results = kept_results.read(path)
        json.loads(results.to_json())
        content._results(results)
        summary.markdown([], [results])
    kept_results.left_out(path.parent)


def fuzz_lowering(data: bytes) -> None:
    """The facts of a lowering, reported."""
    from etbuild.plan.plan import from_manifest
    from etbuild.report.report import report
    from etbuild.steps import facts
    from tests.unit.indexes import MANIFEST

    with _only_our_errors():
        lowering = facts.read_lowering(_file("net.lowering.json", data))
        whole = from_manifest(cast(Any, MANIFEST))
        if whole.methods.keys() <= lowering["program"]["methods"].keys() & lowering["operators"].keys():
            report(whole, lowering, [], [])


def fuzz_export(data: bytes) -> None:
    """The file of an export that describes what its methods share."""
    from etbuild.export import read_archive
    from etbuild.export.layout import ExportFiles

    path = _file("export/module.json", data)
    with _only_our_errors():
        saved = read_archive.read(ExportFiles.below(path.parent))
        if sum(entry.nbytes for entry in saved.tensors) < 1 << 20:
            read_archive.Content(saved, dict[str, Any]().__getitem__).loaded()


def fuzz_lowered_method(data: bytes) -> None:
    """A lowered method without its content."""
    from etplugins.templates import method_archive
    from etplugins.templates.binding import Binding
    from etplugins.templates.recipes import Ingredients

    path = _file("lowered/method.json", data)
    with _only_our_errors():
        found = method_archive.read(path.parent, "forward")
        if found.emitted:
            method_archive.load(found, Binding(Ingredients({}, {}), 1, path.parent))


def fuzz_work_protocol(data: bytes) -> None:
    """Requests of Bazel that arrive in two pieces."""
    from etplugins.worker.protocol import Messages, ProtocolError, decode_request

    messages, cut = Messages(), len(data) // 2
    with contextlib.suppress(ProtocolError):
        for piece in (data[:cut], data[cut:]):
            for message in messages.feed(piece):
                with contextlib.suppress(ProtocolError):
                    decode_request(message)
    with contextlib.suppress(ProtocolError):
        decode_request(data)


def fuzz_pte(data: bytes) -> None:
    """A program."""
    from etkit.native.kernels import program_kernels
    from etplugins.runtime import program_files

    with _only_our_errors():
        program_kernels.read(_file("kernels.pte", data))
    with _only_our_errors():
        program_files.read(_file("no-index.pte", data))
    _describe("net.pte", data)


def fuzz_ptd(data: bytes) -> None:
    """Named data."""
    _describe("net.ptd", data)


def fuzz_etdump(data: bytes) -> None:
    """The events of a device, as the profile of a method."""
    from etbuild.files.instructions import Instruction
    from etkit.inspection import etdump, profile

    method = [Instruction("XnnpackBackend", "delegate"), Instruction("aten::cumsum.out", "operator")]
    subject = profile.Subject("net.pte", "forward", method, profile.Origins())
    with _only_our_errors():
        found = profile.summarize(etdump.read(_file("net.etdp", data)), subject)
        json.dumps(profile.as_json(found))
        assert all(line.isprintable() for line in profile.text(found).split("\n"))


def _describe(name: str, data: bytes) -> None:
    from etbuild.files import program_file
    from etkit.inspection import program_diff, program_text

    path = _file(name, data)
    with _only_our_errors():
        facts = program_file.describe(path)
        json.dumps(facts)
        assert all(line.isprintable() for line in program_text.text(facts).split("\n"))
    with _only_our_errors():
        found = program_diff.facts(path)
        list(program_diff.text(program_diff.compare(found, found)))
        if facts["kind"] == "program":
            from etkit.inspection.page import content, of_file

            content.of_program(facts, *of_file.graphs(path))


def fuzz_safetensors(data: bytes) -> None:
    """A file of weights, read by our reader and by that of safetensors."""
    from etbuild.model import tensor_digests, tensor_files

    path = _file("net.safetensors", data)
    with _only_our_errors():
        tensor_digests.tensor_digests("net.safetensors", path)
    with _only_our_errors():
        tensor_files.read_tensors("net.safetensors", path, ())


def fuzz_checkpoint_index(data: bytes) -> None:
    """The index of a checkpoint with shards."""
    from etbuild.inputs import checkpoints
    from etbuild.key.declared import Inputs

    name = "model.safetensors.index.json"
    index, shard = _file(f"checkpoint/{name}", data), _file("checkpoint/a.safetensors", b"")
    with _only_our_errors():
        found = checkpoints.find("checkpoint", (), Inputs(roots=[index.parents[1]]))
        assert list(found.files.values()) == [shard]


def fuzz_adapter_config(data: bytes) -> None:
    """PEFT's configuration of an adapter."""
    from etbuild.key.declared import Inputs
    from etplugins.lora import config as adapter_config

    file = _file("adapter_config.json", data)
    with _only_our_errors():
        config = adapter_config.read(file.name, (), Inputs(roots=[file.parent]))
        config.factor_of("head")


def fuzz_model_config(data: bytes) -> None:
    """The configuration of a model of Hugging Face, for its first manifest. The manifest has to be valid."""
    from etbuild.manifest import validate
    from etkit.authoring import first_manifest
    from etkit.authoring.first_manifest import trial

    folder = _file("model/config.json", data).parent
    first = None
    with _only_our_errors():
        first = next(first_manifest.of_huggingface(folder, folder.parent))
    if first is not None:
        assert all(isinstance(key, str) for key, _ in trial.shortened(first.config))
        validate.load(_file("first.yaml", first.manifest.encode()))
        assert first.target


def fuzz_packed(data: bytes) -> None:
    """A checkpoint with packed weights: a line with `quantization_config`, then a safetensors file."""
    from etbuild.model import tensor_files
    from etplugins.packed.checkpoints import Packing

    line, _, content = data.partition(b"\n")
    with contextlib.suppress(ValueError, RecursionError):
        config = json.loads(line)
        if not isinstance(config, dict):
            return
        path = _file("packed.safetensors", content)
        with _only_our_errors():
            opened = {"a": tensor_files.open_checkpoint(path.name, path, ())}
            for one in Packing(config, "float32").with_weights(opened).values():
                for name in one.names:
                    with _only_our_errors():
                        one.form(name)
                        one.take(name).float().sum()


def fuzz_gguf(data: bytes) -> None:
    """The header of a GGUF file."""
    from etplugins.packed import gguf_header

    with contextlib.suppress(ValueError):
        gguf_header.check(io.BytesIO(data), len(data), {0: (1, 4), 1: (1, 2), 8: (32, 34)})


def fuzz_torch_file(data: bytes) -> None:
    """A file of torch.save with weights."""
    from etbuild.model import tensor_digests, tensor_files

    path = _file("net.pt", data)
    with _only_our_errors():
        opened = tensor_files.open_checkpoint("net.pt", path, ())
        opened.check(opened.names)
        for name in opened.names:
            opened.form(name)
            opened.take(name).sum()
    with _only_our_errors():
        tensor_digests.tensor_digests("net.pt", path)


def fuzz_pt2(data: bytes) -> None:
    """An exported program."""
    from etbuild.export import export_methods
    from etbuild.key.declared import Inputs
    from etbuild.plan.plan import from_manifest

    path = _file("net.pt2", data)
    methods: Any = {"forward": {"program": "net.pt2"}}
    whole = from_manifest({"schema": "executorch-model/v1", "name": "net", "methods": methods})
    with _only_our_errors(), contextlib.redirect_stderr(io.StringIO()):
        export_methods.load_method(whole.export_plan, "forward", Inputs({}, {"net.pt2": path}, []))


TARGETS: dict[str, Target] = {
    key.removeprefix("fuzz_"): value for key, value in list(globals().items()) if key.startswith("fuzz_")
}
