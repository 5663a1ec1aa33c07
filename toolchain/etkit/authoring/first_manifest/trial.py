"""Tries a first manifest before it is written: exports a few layers of the model, and checks that the weights fit it.
If a runner is to run the program, these layers are lowered too, and the runner must have the kernels that they call.

Export and lowering are those of a build, but with fewer layers, so they take seconds. Only headers of weights are read.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError, EtbuildError, Problem, printable
from etbuild.files.value_limits import MAX_DEPTH
from etbuild.files.weights_suffixes import GGUF_SUFFIX
from etbuild.inputs.given import Given
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest.first import First

if TYPE_CHECKING:
    from etbuild.inputs.sources import UsedSources
    from etbuild.inputs.step_context import Stage
    from etbuild.plan.plan import Plan

_NEEDED = ("torch", "executorch", "transformers")
_LEAST = 2  # the smallest number of layers
_LAYERS = re.compile(r"n_layers?|num_((hidden|encoder|decoder)_)?layers|(en|de)coder_layers|depth")
_SPACING = re.compile(r"\w*_(period|offset|interval|pattern|freq)|first_k_dense_replace|decoder_sparse_step")
_CUSTOM, _STATIC = "    kind: custom", "    kind: static"
_RANGE = "  dynamic_shapes: "  # the second line of `methods` that say only the range of a task's input
_SHOWN = 80  # characters of an error in a comment


def missing() -> str | None:
    """The package that a trial needs and that is not installed; None if all are."""
    return next((name for name in _NEEDED if find_spec(name) is None), None)


def of_folder(first: First, beside: Path, stage: Stage) -> First:
    """Exports the model of a first manifest. Returns a manifest that can be exported: the same, or one that asks for
    less.

    Args:
        first: What the manifest says.
        beside: The directory of the manifest.
        stage: Is called for each stage, to show progress.

    Raises:
        EtbuildError: The export failed. The error is that of a build.
    """
    while True:
        try:
            _export(first, beside, stage)
        except EtbuildError as error:
            other = _adapted(first, error.problems[0])
            if other is None:
                raise
            first = other
        else:
            _check_weights(first, beside, stage)
            return first


def _adapted(first: First, problem: Problem) -> First | None:
    """A manifest that asks for less than one that cannot be exported: without a runner, without ExecuTorch's attention,
    or with sounds of one length. None if none of these is the problem."""
    why = printable(" ".join(problem.message.split()))[:_SHOWN]
    if "".join(first.methods[1:2]).startswith(_RANGE):
        remark = f"Each sound has the length `max_source_length`; a range fails: {why}."
        return replace(first, methods=[], remarks=[*first.remarks, remark])
    if first.runner is not None and (problem.path or ())[:1] == ("runner",):
        remark = f"ExecuTorch's runner cannot run the program: {why}."
        return replace(first, runner=None, remarks=[*first.remarks, remark])
    if _CUSTOM not in first.model:
        return None
    lines = [f"{_STATIC}   # `custom` fails: {why}" if line == _CUSTOM else line for line in first.model]
    return replace(first, model=lines)


def _export(first: First, beside: Path, stage: Stage) -> None:
    """Exports a few layers. If that fails, exports the whole model: too few layers may be the cause."""
    shorter = dict(shortened(first.config))
    try:
        _export_form(_plan(first, shorter), first, beside, stage)
    except EtbuildError:
        if not shorter:
            raise
        _export_form(_plan(first, {}), first, beside, stage)


def _export_form(plan: Plan, first: First, beside: Path, stage: Stage) -> None:
    from etbuild.guard import children
    from etbuild.guard.reads import watched_reads
    from etbuild.key.import_graph import used_sources
    from etbuild.key.key import data_in_key
    from etbuild.steps.export import export

    plan.check_backends()
    found = Inputs(roots=[beside, *first.roots])
    inputs = found.only(data_in_key(found, plan.export_plan.data_names))
    with tempfile.TemporaryDirectory() as directory:
        export(plan.export_plan, inputs, used_sources(found, plan.export_plan), Path(directory), stage, watched_reads)
        if first.runner is not None:
            children.run_one(partial(_check_kernels, plan, Path(directory), inputs, stage))


def _check_kernels(plan: Plan, exported: Path, inputs: Given, stage: Stage) -> None:
    """Checks that ExecuTorch's package has the kernels that a program calls. The weights are not needed.

    Args:
        plan: The plan of the program.
        exported: The directory of its export.
        inputs: The declared inputs.
        stage: Is called for each stage, to show progress.

    Raises:
        BuildError: A kernel is missing, or a method cannot be lowered.
    """
    from etbuild.surroundings.library_output import library_messages_off

    with library_messages_off():  # the imports print messages, too
        from etbuild.emit import runtime_limits
        from etbuild.export.layout import ExportFiles
        from etbuild.guard.reads import watched_reads
        from etbuild.steps.lowering_options import LoweringOptions
        from etbuild.steps.saved_export import LoweringJob
        from etplugins.runtime.program_files import has_own_kernel
        from etplugins.templates import method_archive, one_by_one

        job = LoweringJob(plan.lower_plan, ExportFiles.below(exported), inputs, stage, watched_reads, LoweringOptions())
        with tempfile.TemporaryDirectory() as directory:
            one_by_one.templates(job, Path(directory), weights=False)
            for name in plan.methods:
                if (Path(directory) / name).exists():  # without the file, the method is lowered with the weights
                    called = method_archive.operators(method_archive.read(Path(directory) / name, name))
                    missing = [each for each in runtime_limits.without_kernel(called) if not has_own_kernel(each)]
                    if missing:
                        raise BuildError.at(("runner",), f"there is no kernel for `{missing[0]}`, which `{name}` calls")


def _check_weights(first: First, beside: Path, stage: Stage) -> None:
    """Checks that the files with weights have the tensors of the model. Only their headers are read."""
    from etbuild.guard import children
    from etbuild.key.import_graph import used_sources

    if first.checkpoint is None or (first.checkpoint.endswith(GGUF_SUFFIX) and find_spec("gguf") is None):
        return
    plan, inputs = _plan(first, {}), Inputs(roots=[beside, *first.roots])
    used = used_sources(inputs, plan.export_plan)
    with stage("compare the weights"):
        children.run_one(partial(_match, plan, first.checkpoints, inputs, used))


def _match(plan: Plan, checkpoints: list[str | dict[str, Any]], inputs: Inputs, used: UsedSources) -> None:
    from etbuild.guard.reads import watched_reads
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

    with library_messages_off(used.sources), stdout_for_results(), importable(used, [], watched_reads):
        from etbuild.model import module
        from etbuild.model.checkpoint import CheckpointTensors
        from etbuild.model.packing import packed_checkpoints
        from etbuild.model.weights_files import describe_state
        from etbuild.plan.parts import WeightsFile

        root = module.create(plan.model, StepContext(inputs), True)
        facts, cast = describe_state(root), plan.model.dtype is not None
        weights = tuple(map(WeightsFile.from_json, checkpoints))
        CheckpointTensors(weights, inputs, facts, cast, root, packed_checkpoints().packing_of(root))


def _plan(first: First, changed: Mapping[str, Any]) -> Plan:
    """The plan of the manifest without its weights and without what reads them: their content is not needed.

    Args:
        first: What the manifest says.
        changed: The keys of the configuration that get other values.
    """
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{first.name}.yaml"
        path.write_text(first.manifest, "utf-8")
        manifest: Any = validate.load(path, path.name).data
    model = {key: value for key, value in manifest["model"].items() if key != "adapters"}
    of_class = model["huggingface"]
    if changed:
        config = of_class["config"]
        config = {"file": config, "set": {}} if isinstance(config, str) else config
        of_class = {**of_class, "config": {**config, "set": {**changed, **config["set"]}}}
    defaults = {key: value for key, value in manifest["defaults"].items() if key != "quantize"}
    model |= {"huggingface": of_class, "weights": "model.safetensors"}  # only a name: the file is not read
    manifest |= {"model": model, "defaults": defaults}
    if "methods" in manifest:
        manifest["methods"] = {name: each for name, each in manifest["methods"].items() if "adapter" not in each}
    return from_manifest(manifest)


def shortened(config: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The keys that give a configuration a few layers, with their values. A dot leads into a nested configuration.

    A list with a value for each layer is shortened, too. There are at least two layers, and enough to have each kind of
    layer that such a list names, or that begins after a number of layers.

    Args:
        config: The configuration.
        above: The beginning of the keys.
        depth: How many configurations are around this one.
    """
    counts = {key: value for key, value in config.items() if _LAYERS.fullmatch(key) and type(value) is int}
    for key, count in counts.items():
        lists = {name: each for name, each in config.items() if isinstance(each, list) and len(each) == count}
        spaces = [each for name, each in config.items() if _SPACING.fullmatch(name) and type(each) is int]
        kept = max([_LEAST, *map(_prefix, lists.values()), *(1 + space for space in spaces)])
        if kept < count:
            yield f"{above}{key}", kept
            yield from ((f"{above}{name}", each[:kept]) for name, each in lists.items())
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and depth < MAX_DEPTH:
            yield from shortened(value, f"{above}{key}.", depth + 1)


def _prefix(values: list[Any]) -> int:
    """How many values at the beginning of a list contain all values of the list."""
    texts = [json.dumps(value) for value in values]
    return 1 + max(texts.index(text) for text in texts)
