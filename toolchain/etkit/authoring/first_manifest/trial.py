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
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError, EtbuildError, Problem, printable
from etbuild.files.value_limits import MAX_DEPTH
from etbuild.files.weights_suffixes import GGUF_SUFFIX
from etbuild.inputs.given import Given
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest.first import First
from etplugins.transformers.tasks import TASKS

if TYPE_CHECKING:
    from etbuild.inputs.sources import UsedSources
    from etbuild.inputs.step_context import Stage
    from etbuild.plan.plan import Plan
    from etplugins.transformers.class_inputs import ClassInputs

_NEEDED = ("torch", "executorch", "transformers")
_LEAST = 2  # the smallest number of layers
_LAYERS = re.compile(r"n_layers?|num_((hidden|encoder|decoder)_)?layers|(en|de)coder_layers|depth")
_SPACING = re.compile(r"\w*_(period|offset|interval|pattern|freq)|first_k_dense_replace|decoder_sparse_step")
_CUSTOM, _STATIC = "    kind: custom", "    kind: static"
_RANGE = "  dynamic_shapes: "  # the second line of `methods` that say only the range of a task's input
_CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")  # in the words of PyTorch
_LONGEST = re.compile(r"  max_source_length: (\d+)   # tokens")
_TASK = "  task: "
_ONE_LENGTH = 128  # tokens of a text, if it has one length
_OF_EVERY_MANIFEST = ("model", "huggingface", "config")
_WORDS = "tokenizer.json"
_SHOWN = 80  # characters of an error in a comment


def missing() -> str | None:
    """The package that a trial needs and that is not installed; None if all are."""
    return next((name for name in _NEEDED if find_spec(name) is None), None)


@cache
def class_inputs(kind: str) -> ClassInputs | None:
    """The inputs of a class of transformers; None if it has no such class. Imports the class in this process, so that
    those that it forks for a trial do not import it again."""
    from etbuild.processes.import_without_gc import import_without_gc
    from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
    from etplugins.transformers import class_inputs as known

    with library_messages_off(), stdout_for_results(), import_without_gc("transformers"):
        return known.of_class(kind)


def of_folder(candidates: Iterator[First], beside: Path, stage: Stage) -> tuple[First | None, list[EtbuildError]]:
    """Exports the model of first manifests. Returns the first that can be exported, or what it becomes if it asks for
    less; and the errors of those before it, or that of weights that do not fit. Errors are those of a build.

    Args:
        candidates: What the manifests say, the best one first.
        beside: The directory of the manifest.
        stage: Is called for each stage, to show progress.

    Raises:
        EtbuildError: No manifest is known.
    """
    failures: list[EtbuildError] = []
    _import_torch(stage)
    for first in candidates:
        try:
            found, constants = _exported(first, beside, stage)
        except EtbuildError as error:
            failures.append(error)
            if (error.problems[0].path or ())[:3] == _OF_EVERY_MANIFEST:
                break
        else:
            try:
                _check_weights(found, beside, stage)
            except EtbuildError as error:
                return None, [error]  # no other manifest would help
            noted = _with_notes_on_tokenizer(found, constants, beside, stage)
            return _with_notes_on_inputs(noted, beside, stage), failures
    return None, failures


def _exported(first: First, beside: Path, stage: Stage) -> tuple[First, dict[str, object]]:
    """The manifest that can be exported: the same, or one that asks for less; and the constants of its program. Raises
    the error of the last try."""
    while True:
        try:
            return first, _export(first, beside, stage)
        except EtbuildError as error:
            other = _adapted(first, error.problems[0])
            if other is None:
                raise
            first = other


def _with_notes_on_tokenizer(first: First, constants: Mapping[str, object], beside: Path, stage: Stage) -> First:
    """The manifest with remarks on what an application with ExecuTorch's runner and tokenizer would do wrong."""
    if first.runner is None or not first.tokenizer:
        return first
    from etplugins.tokenizer import conformance, ends, files

    found = Inputs(roots=[beside, *first.roots])
    paths = {Path(name).name: found.find_data(name, ("tokenizer",)) for name in first.tokenizer}
    with stage("compare the tokenizers"):
        differs = conformance.difference(str(paths[_WORDS])) if _WORDS in paths else None
    noted = ends.notes({name: path.read_bytes() for name, path in paths.items()}, constants)
    if differs is not None:
        other = None if differs.content is None else f"{first.name}.tokenizer/{files.RUNNER_FORM}{differs.suffix}"
        noted = [files.note_on_runner(differs, other), *noted]
    told = (f"{each.message}{f': {each.hint}' if each.hint else ''}." for each in noted)
    return replace(first, remarks=[*first.remarks, *(printable(f"{text[0].upper()}{text[1:]}") for text in told)])


def _with_notes_on_inputs(first: First, beside: Path, stage: Stage) -> First:
    """The manifest with remarks on inputs that it leaves out, though they change what the model computes."""
    from etbuild.guard import children
    from etkit.authoring.first_manifest import left_out

    kind = str(first.config["architectures"][0])
    inputs = class_inputs(kind)
    if inputs is None:
        return first
    left = left_out.names(first, inputs)
    in_one_call = all(TASKS[name].outputs for name in left_out.first_tasks(first))
    if left and in_one_call and inputs.main == "input_ids":
        with stage("try other inputs"):
            left = children.run_one(partial(_that_matter, kind, first, beside, left))
    return replace(first, remarks=[*first.remarks, *left_out.remarks(left, first, inputs)])


def _that_matter(kind: str, first: First, beside: Path, left: list[str]) -> list[str]:
    """Those of the inputs that are left out which change a result of a model with a few layers."""
    from etbuild.guard.reads import watched_reads
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.key.import_graph import used_sources
    from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
    from etkit.authoring.first_manifest import known_inputs, left_out

    inputs, of_class = Inputs(roots=[beside, *first.roots]), class_inputs(kind)
    assert of_class is not None, "a parent process has found them"
    plan = _plan(first, dict(shortened(first.config)))
    used = used_sources(inputs, plan.export_plan)
    with library_messages_off(used.sources), stdout_for_results(), importable(used, [], watched_reads):
        from etbuild.model import module

        try:
            root = module.create(plan.model, StepContext(inputs)).eval()
        except EtbuildError:  # such as one that needs all of its layers
            return left
        return left_out.that_matter(root, left, known_inputs.of(kind, first.config, of_class))


def _import_torch(stage: Stage) -> None:
    """Imports PyTorch before this process forks."""
    from etbuild.steps.export import import_torch
    from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

    with library_messages_off(), stdout_for_results():
        import_torch(stage)


def _adapted(first: First, problem: Problem) -> First | None:
    """A manifest that asks for less than one that cannot be exported: without a runner, without ExecuTorch's attention,
    or with inputs of one length. None if none of these is the problem."""
    why = printable(" ".join(problem.message.split()))[:_SHOWN]
    if "".join(first.methods[1:2]).startswith(_RANGE):
        remark = f"Each sound has the length `max_source_length`; a range fails: {why}."
        return replace(first, methods=[], remarks=[*first.remarks, remark])
    if first.runner is not None and (problem.path or ())[:1] == ("runner",):
        remark = f"ExecuTorch's runner cannot run the program: {why}."
        return replace(first, runner=None, remarks=[*first.remarks, remark])
    if _CUSTOM in first.model:
        lines = [f"{_STATIC}   # `custom` fails: {why}" if line == _CUSTOM else line for line in first.model]
        return replace(first, model=lines)
    if channels := _CHANNELS.search(problem.message):
        return _of_channels(first, channels[2], channels[1])
    if "dynamic_shapes" in (problem.path or ()):
        return _of_shorter_texts(first, problem.hint or "", why) or _of_one_length(first, why)
    return None


def _of_channels(first: First, guessed: str, wanted: str) -> First | None:
    """A manifest whose images have the channels that a convolution of the model takes. None if it has no such image."""
    lines = [line.replace(f"shape: [1, {guessed}, ", f"shape: [1, {wanted}, ") for line in first.methods]
    return None if lines == first.methods else replace(first, methods=lines)


def _of_shorter_texts(first: First, hint: str, why: str) -> First | None:
    """A manifest whose longest text is the one that an error proposes. None if it proposes none, or no shorter one."""
    proposed, limits = _proposed(hint), [found for line in first.model if (found := _LONGEST.match(line))]
    if proposed is None or not limits or proposed >= int(limits[0][1]):
        return None
    lines = [line.replace(limits[0][1], str(proposed), 1) if _LONGEST.match(line) else line for line in first.model]
    remark = f"A text has at most {proposed} tokens; a longer one fails: {why}."
    return replace(first, model=lines, remarks=[*first.remarks, remark])


def _proposed(hint: str) -> int | None:
    """The largest size that an error proposes, in the words of the function that writes such hints. None if it proposes
    none, or a range that leaves out short texts."""
    from etbuild.export.export_errors import range_hint

    for least in (None, "1", "2"):
        form = re.escape(range_hint("NAME", (least, "9"))).replace("NAME", r"\w+").replace("9", r"(\d+)")
        if found := re.search(form, hint):
            return int(found[1])
    return None


def _of_one_length(first: First, why: str) -> First | None:
    """A manifest whose texts have one length, since a range fails. None if it has no range of texts."""
    limits = [found for line in first.model if (found := _LONGEST.match(line))]
    tasks = [TASKS[line.removeprefix(_TASK)] for line in first.model if line.startswith(_TASK)]
    in_one_call = len(first.methods) < 2 and all(task.outputs for task in tasks)
    if limits and in_one_call and not any(line.startswith("  pooling:") for line in first.model):
        length = min(int(limits[0][1]), _ONE_LENGTH)
        tokens, ones = (f"{{shape: [1, {length}], dtype: int64{more}}}" for more in ("", ", fill: ones"))
        lines = ["forward:", "  example_kwargs:", f"    input_ids: {tokens}", f"    attention_mask: {ones}"]
        remark = (
            f"Each text has {length} tokens; `attention_mask` is 0 for those that fill it up. A range fails: {why}."
        )
        return replace(first, methods=lines, remarks=[*first.remarks, remark])
    lines = [line for line in first.methods if not line.startswith(_RANGE)]
    if len(lines) in (1, len(first.methods)):
        return None
    remark = f"Each call has the size of `example_inputs`; a range fails: {why}."
    return replace(first, methods=lines, remarks=[*first.remarks, remark])


def _export(first: First, beside: Path, stage: Stage) -> dict[str, object]:
    """Exports a few layers, and returns the constants. If that fails, exports the whole model: too few layers may be
    the cause."""
    shorter = dict(shortened(first.config))
    try:
        return _export_form(_plan(first, shorter), first, beside, stage)
    except EtbuildError:
        if not shorter:
            raise
        return _export_form(_plan(first, {}), first, beside, stage)


def _export_form(plan: Plan, first: First, beside: Path, stage: Stage) -> dict[str, object]:
    from etbuild.export.layout import CONSTANTS, ExportFiles
    from etbuild.guard import children
    from etbuild.guard.reads import watched_reads
    from etbuild.key.import_graph import used_sources
    from etbuild.key.key import data_in_key
    from etbuild.steps.export import export

    plan.check_backends()
    found = Inputs(roots=[beside, *first.roots])
    inputs = found.only(data_in_key(found, plan.export_plan.data_names))
    with tempfile.TemporaryDirectory() as directory:
        used, files = used_sources(found, plan.export_plan), ExportFiles.below(Path(directory))
        export(plan.export_plan, inputs, used, files.directory, stage, watched_reads)
        if files.needs_reexport:  # lowering would export the methods; their weights may be any
            with tempfile.TemporaryDirectory() as other:
                without = plan.export_plan.replace(leaves_weights=False)
                export(without, inputs, used, Path(other), stage, watched_reads)
        if first.runner is not None:
            children.run_one(partial(_check_kernels, plan, Path(directory), inputs, stage))
        constants = Path(directory) / CONSTANTS
        return dict(json.loads(constants.read_bytes())["constants"]) if constants.exists() else {}


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
    """Checks that the files with weights have the tensors of the model and of its adapters. Only their headers are
    read."""
    from etbuild.guard import children
    from etbuild.key.import_graph import used_sources

    of_gguf = first.checkpoint is not None and first.checkpoint.endswith(GGUF_SUFFIX)
    checkpoints = [] if of_gguf and find_spec("gguf") is None else first.checkpoints
    if not checkpoints and not first.adapters:
        return
    plan, inputs = _plan(first, {}, adapters=True), Inputs(roots=[beside, *first.roots])
    used = used_sources(inputs, plan.export_plan)
    with stage("compare the weights"):
        children.run_one(partial(_match, plan, checkpoints, inputs, used))


def _match(plan: Plan, checkpoints: list[str | dict[str, Any]], inputs: Inputs, used: UsedSources) -> None:
    from etbuild.guard.reads import watched_reads
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

    with library_messages_off(used.sources), stdout_for_results(), importable(used, [], watched_reads):
        from etbuild.model import module
        from etbuild.model.checkpoint import CheckpointTensors
        from etbuild.model.packing import packed_checkpoints
        from etbuild.model.weights_files import describe, describe_state
        from etbuild.plan.parts import WeightsFile
        from etbuild.steps.method_change import adapters

        root = module.create(plan.model, StepContext(inputs), True)
        if checkpoints:
            facts, cast = describe_state(root), plan.model.dtype is not None
            weights = tuple(map(WeightsFile.from_json, checkpoints))
            CheckpointTensors(weights, inputs, facts, cast, root, packed_checkpoints().packing_of(root))
        if plan.export_plan.adapters:
            adapters().attach(root, plan.export_plan, inputs)
            adapters().check_weights(plan.lower_plan.adapters, describe(root, False), inputs)


def _plan(first: First, changed: Mapping[str, Any], adapters: bool = False) -> Plan:
    """The plan of the manifest without its weights and without what reads them: their content is not needed.

    Args:
        first: What the manifest says.
        changed: The keys of the configuration that get other values.
        adapters: Whether the plan has the adapters. Those of a whole model do not fit one with fewer layers.
    """
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{first.name}.yaml"
        path.write_text(first.manifest, "utf-8")
        manifest: Any = validate.load(path, path.name).data
    model = {key: value for key, value in manifest["model"].items() if adapters or key != "adapters"}
    of_class = model["huggingface"]
    if changed:
        config = of_class["config"]
        config = {"file": config, "set": {}} if isinstance(config, str) else config
        of_class = {**of_class, "config": {**config, "set": {**changed, **config["set"]}}}
    defaults = {key: value for key, value in manifest["defaults"].items() if key != "quantize"}
    model |= {"huggingface": of_class, "weights": "model.safetensors"}  # only a name: the file is not read
    manifest |= {"model": model, "defaults": defaults}
    if "methods" in manifest and not adapters:
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
