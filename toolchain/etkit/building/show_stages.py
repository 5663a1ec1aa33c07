"""Runs a build up to one of ExecuTorch's stages, and writes what each stage made to files that people can read.

    1-source_transform/METHOD.txt, .safetensors   the module that the method is exported from
    2-quantize/METHOD.txt                         its graph with quantized operators, before it is exported again
    3-export/METHOD.txt, .pt2                     the exported program, after all passes over it
    4-to_edge/METHOD.txt                          the program in the edge dialect, after the passes `edge`
    5-lower/METHOD.txt                            the program with delegates, and the content of each delegate
    6-to_executorch/NAME.pte, NAME.TAG.ptd, .txt  the final program, and its content

Nothing comes from a cache or goes into it: the graphs have stack traces, which contain paths.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import notes, releases
from etbuild.errors import Problem
from etbuild.guard.reads import watched_reads
from etbuild.inputs.step_context import Stage, StepContext
from etbuild.inputs.user_code import importable
from etbuild.key.declared import Inputs
from etbuild.key.import_graph import used_sources
from etbuild.key.key import data_in_key
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.publishing.artifacts import whole_directory
from etbuild.steps.create_module import create_module
from etbuild.steps.export import Modules, export_methods, prepare_methods, tensors_of
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
from etkit.building.stages import STAGES

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram


def stop_after(last: str, plan: Plan, inputs: Inputs, directory: Path, stage: Stage) -> dict[str, list[Path]]:
    """Runs the stages up to one of them, and saves what each stage made.

    Args:
        last: The last stage, one of `stages.STAGES`.
        plan: What to build.
        inputs: The declared inputs. The build reads no other files.
        directory: The parent of the stages' directories. Stages' directories of an earlier run are removed.
        stage: Is called for each stage, to show progress.

    Returns:
        The files of each stage, in order.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The model cannot be exported, lowered or written.
    """
    used = used_sources(inputs, plan.export_plan)
    for number, name in enumerate(STAGES, 1):  # remove files of an earlier run: they may be of another model
        shutil.rmtree(directory / f"{number}-{name}", ignore_errors=True)
    saved: dict[str, list[Path]] = {}
    given = inputs.only(data_in_key(inputs, plan.data_names))
    with library_messages_off(used.sources), stdout_for_results():
        releases.check()
        with stage("import ExecuTorch"), import_without_gc("executorch.exir"):
            from etbuild.emit.emit_program import write_program  # noqa: F401
            from etbuild.export import custom_ops
            from etbuild.export import export_methods as export  # noqa: F401
            from etbuild.lower import lower_methods  # noqa: F401
        with importable(used, given.data.values(), watched_reads), notes.collected() as said:
            context = StepContext(given, stage)
            custom_ops.load(plan.custom_ops, context)
            for number, (name, write) in enumerate(_walk(plan, context), 1):
                target = directory / f"{number}-{name}"
                with whole_directory(target) as staged:
                    write(staged)
                saved[name] = sorted(path for path in target.rglob("*") if path.is_file())
                if name == last:
                    break
    notes.show([*map(Problem, said)])
    return saved


Write = Callable[[Path], None]
"""Writes the files of a stage into a directory."""


def _walk(plan: Plan, context: StepContext) -> Iterator[tuple[str, Write]]:
    """The stages in their order. Each runs when the caller asks for the next item."""
    from etbuild.emit.emit_methods import Lowered, emit_methods
    from etbuild.export import constant_methods
    from etbuild.files.program_file import describe
    from etbuild.lower import lower_methods, shards
    from etbuild.lower.finite_weights import non_finite
    from etbuild.steps.lower import write_program
    from etkit.inspection.program_text import text

    exporting, lowering = plan.export_plan, plan.lower_plan
    constants = {**lowering.constant_methods, **constant_methods.compute(exporting)}
    lowering = lowering.replace(constant_methods=constants)
    with context.stage("create the module"):
        root = create_module(exporting, context, lowering.weights)
    modules = Modules(root, exporting)
    yield "source_transform", partial(_write_modules, exporting, modules)
    prepared = prepare_methods(exporting, modules, context)
    graphs = {name: _readable(one.quantized) for name, one in prepared.items() if one.quantized is not None}
    yield "quantize", partial(_write_texts, graphs)
    programs = export_methods(exporting, modules, context, prepared)
    yield "export", partial(_write_programs, programs)
    with context.stage("to edge"):
        edge = lower_methods.to_edge(lowering, programs)
    yield "to_edge", partial(_write_texts, _edge_graphs(edge))
    shard_of = shards.of_tensors(lowering, tensors_of(exporting, root, programs))
    weights = non_finite(programs)
    with context.stage("lower"):
        edge = lower_methods.lower_programs(lowering, programs, shard_of)
    yield "lower", partial(_write_texts, _edge_graphs(edge))

    def emit(directory: Path) -> None:
        emitted = emit_methods(lowering, Lowered(edge, shard_of, weights, None))
        artifacts = write_program(lowering, [emitted], shard_of, context, directory, {})
        shown = [text(describe(artifact.path)) for artifact in artifacts if artifact.kind in ("program", "named_data")]
        _write_texts({lowering.name: "\n\n".join([*shown, ""])}, directory)

    yield "to_executorch", emit


def _write_modules(exporting: ExportPlan, modules: Modules, directory: Path) -> None:
    from safetensors.torch import save_file

    from etbuild.model.module import named_tensors

    for name, method in sorted(exporting.methods.items()):
        if method.program is None:
            with modules.module_for(name) as (module, _):
                tensors = {key: tensor.detach().clone() for key, tensor in named_tensors(module).items()}
                listed = [f"{key}: {tensor.dtype} {list(tensor.shape)}" for key, tensor in tensors.items()]
                _write_texts({name: "\n".join([str(module), "", *listed, ""])}, directory)
            save_file(tensors, directory / f"{name}.safetensors")


def _write_programs(programs: dict[str, ExportedProgram], directory: Path) -> None:
    import torch

    for name, program in programs.items():
        torch.export.save(program, directory / f"{name}.pt2")
    _write_texts({name: f"{program}\n" for name, program in programs.items()}, directory)


def _write_texts(texts: dict[str, str], directory: Path) -> None:
    for name, text in texts.items():
        (directory / f"{name}.txt").write_text(text, "utf-8")


def _edge_graphs(edge: EdgeProgramManager) -> dict[str, str]:
    """The graph of each method, followed by the graphs of its delegates."""
    from etbuild.lower.named_data import delegates

    texts = {}
    for name in sorted(edge.methods):
        program = edge.exported_program(name)
        parts = [_readable(program.graph_module)]
        for number, delegate in enumerate(delegates(program.graph_module)):
            blobs = delegate.named_data_store_output
            size = len(delegate.processed_bytes) + sum(map(len, blobs.buffers if blobs is not None else ()))
            parts += [f"delegate {number}: {delegate.backend_id}, {size:,} bytes"]
            parts += [_readable(delegate.original_module.graph_module)]
        texts[name] = "\n".join(parts)
    return texts


def _readable(graph_module: torch.fx.GraphModule) -> str:
    return f"{graph_module.print_readable(print_output=False)}\n"
