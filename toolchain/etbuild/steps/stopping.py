"""The road up to one of ExecuTorch's stages, with what each of them made in files that a person can look into.

    1-source_transform/METHOD.txt, .safetensors   the module that the method is exported from
    2-quantize/METHOD.txt                         its graph with quantized operators, before it is exported again
    3-export/METHOD.txt, .pt2                     the exported program, after all passes over it
    4-to_edge/METHOD.txt                          the same in the edge dialect, which has no file format
    5-lower/METHOD.txt                            the same with delegates, and what is in each of them
    6-to_executorch/NAME.pte, NAME.TAG.ptd        the program

Nothing here is cached, and nothing is kept of a stage for the next build: graphs show stack traces, with paths.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import files, recipes, versions
from etbuild.inputs import Inputs, used_sources
from etbuild.plan import Plan, export_plan, lower_plan
from etbuild.quiet import library_messages_off, stdout_for_results
from etbuild.sources import SourceFinder, importable
from etbuild.steps.exporting import Modules, create_module, export_methods
from etbuild.steps.stages import STAGES, Stage, frozen_if_first

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram


def stop_after(last: str, plan: Plan, inputs: Inputs, directory: Path, stage: Stage) -> list[Path]:
    """Runs the stages up to one of them, and saves what each made.

    Args:
        last: The last stage, one of `stages.STAGES`.
        plan: What to build.
        inputs: What may be read.
        directory: Where the stages' directories go. Those of an earlier time are removed.
        stage: Is told of each stage, for progress.

    Returns:
        The files, in the order of the stages.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The model cannot be exported, lowered or written.
    """
    used = used_sources(inputs, export_plan(plan))
    for number, name in enumerate(STAGES, 1):  # of an earlier time, or a user would look into what is of another model
        shutil.rmtree(directory / f"{number}-{name}", ignore_errors=True)
    saved: list[Path] = []
    with library_messages_off(used.sources), stdout_for_results(), importable(used.sources) as finder:
        versions.check()
        with stage("import ExecuTorch"), frozen_if_first("executorch.exir"):
            from etbuild import custom_ops, emit, export, lower  # noqa: F401
        custom_ops.load(export_plan(plan)["custom_ops"], inputs, finder)
        for number, (name, write) in enumerate(_road(plan, inputs, finder, stage), 1):
            place = directory / f"{number}-{name}"
            with files.whole_directory(place) as made:
                write(made)
            saved += sorted(path for path in place.rglob("*") if path.is_file())
            if name == last:
                break
    return saved


Write = Callable[[Path], None]
"""Writes the files of a stage into a directory."""


def _road(plan: Plan, inputs: Inputs, finder: SourceFinder, stage: Stage) -> Iterator[tuple[str, Write]]:
    """The stages in their order. Each runs when it is asked for."""
    from etbuild import constants
    from etbuild.steps.lowering import Lowered, emit_program, shards_of, weight_places_of

    exporting, lowering = export_plan(plan), lower_plan(plan)
    lowering["constant_methods"].update(constants.compute(exporting, finder))
    with stage("create the module"):
        root = create_module(exporting, inputs, finder, lowering["weights"])
    modules = Modules(root, finder)
    yield "source_transform", partial(_write_modules, exporting, modules, finder)
    quantized: dict[str, torch.fx.GraphModule] = {}
    programs = export_methods(exporting, modules, inputs, finder, stage, quantized.__setitem__)
    yield "quantize", partial(_write_graphs, {name: _readable(graph) for name, graph in quantized.items()})
    yield "export", partial(_write_programs, programs)
    with stage("to edge"):
        edge = _to_edge(lowering, programs)
    yield "to_edge", partial(_write_graphs, _edge_graphs(edge))
    shards = shards_of(lowering, exporting, root, programs)
    with stage("lower"):
        edge = _lower(lowering, programs, shards, finder)
    yield "lower", partial(_write_graphs, _edge_graphs(edge))
    lowered = Lowered(edge, shards, weight_places_of(edge))

    def emit(directory: Path) -> None:
        emit_program(lowering, lowered, inputs, finder, directory, stage)

    yield "to_executorch", emit


def _to_edge(lowering: Plan, programs: dict[str, ExportedProgram]) -> EdgeProgramManager:
    from executorch.exir import to_edge

    from etbuild.executorch_config import edge_compile_config

    config = edge_compile_config(lowering, None, [{"_check_ir_validity": False}])  # what a backend takes is still there
    return to_edge(copy.deepcopy(programs), compile_config=config)


def _lower(
    lowering: Plan, programs: dict[str, ExportedProgram], shards: dict[str, str], finder: SourceFinder
) -> EdgeProgramManager:
    from etbuild import lower, named_data

    edge = lower.lower(lowering, programs, shards, finder)
    named_data.arrange(edge, named_data.claims(edge, shards))
    return edge


def _write_modules(exporting: Plan, modules: Modules, finder: SourceFinder, directory: Path) -> None:
    from safetensors.torch import save_file

    from etbuild.module import named_tensors

    for name, method in sorted(exporting["methods"].items()):
        if method["program"] is None:
            recipe = recipes.load(exporting["recipe"], finder) if exporting["recipe"] else None
            with modules.of(name, method, recipe) as (module, _):
                tensors = {key: tensor.detach().clone() for key, tensor in named_tensors(module).items()}
                listed = [f"{key}: {tensor.dtype} {list(tensor.shape)}" for key, tensor in tensors.items()]
                _write_graphs({name: "\n".join([str(module), "", *listed, ""])}, directory)
            save_file(tensors, directory / f"{name}.safetensors")


def _write_programs(programs: dict[str, ExportedProgram], directory: Path) -> None:
    import torch

    for name, program in programs.items():
        torch.export.save(program, directory / f"{name}.pt2")
    _write_graphs({name: f"{program}\n" for name, program in programs.items()}, directory)


def _write_graphs(texts: dict[str, str], directory: Path) -> None:
    for name, text in texts.items():
        (directory / f"{name}.txt").write_text(text, "utf-8")


def _edge_graphs(edge: EdgeProgramManager) -> dict[str, str]:
    """Each method's graph, and under it those of its delegates."""
    from etbuild.named_data import delegates

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
