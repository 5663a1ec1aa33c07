"""Writes an ETRecord of each method: with it, ExecuTorch's Inspector can name operators and lines of the model.

An ETRecord holds graphs that lowering changes. So the methods are lowered once more, together, for ETRecords. This
makes the program again, and its bytes must be those of the built one. Then the numbers of instructions and the debug
handles are also the same, even if the methods were lowered one by one.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import BuildError
from etbuild.files import writing
from etbuild.files.digests import file_digest
from etbuild.files.scratch import temporary
from etbuild.files.zip_archive import canonical_archive
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.source_lines import SourceLines, first_name
from etbuild.publishing import artifacts
from etbuild.steps.lower import Lowering
from etbuild.steps.saved_export import LoweringJob

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager
    from torch.export import ExportedProgram

    from etbuild.plan.step_plans import LowerPlan

_ZIP = b"PK\x03\x04"
_METHOD = "forward"  # the Inspector of ExecuTorch 1.5 reads only the method with this name


def etrecords(job: LoweringJob[LowerPlan], lines: SourceLines, program: Path, directory: Path) -> dict[str, bytes]:
    """The ETRecord of each method, by its name.

    Args:
        job: The methods.
        lines: The lines of the sources.
        program: The `.pte` that was built from them.
        directory: An existing directory for temporary files.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: ExecuTorch cannot save a graph of a method, or the methods are lowered to another program.
    """
    records: dict[str, bytes] = {}

    def on_emitted(manager: ExecutorchProgramManager) -> None:
        records.update({name: _record(manager, name, lines) for name in sorted(job.plan.methods)})

    with artifacts.staging(directory) as staged:
        (methods := staged / "methods").mkdir()
        again = Lowering(job, staged, methods).run(on_emitted=on_emitted)
        (made,) = (each for each in again if each.kind == "program")
        if made.sha256 != file_digest(program):
            hint = "build the program again; if it stays so, report it with the manifest"
            raise BuildError.of(f"the ETRecords do not belong to {program.name}: lowering made another program", hint)
    return records


def write(directory: Path, records: Mapping[str, bytes], below: str = "") -> list[writing.Artifact]:
    """Writes ETRecords as `METHOD.etrecord` to a directory inside an existing one, or into the existing one itself."""
    (directory / below).mkdir(exist_ok=True)
    prefix = f"{below}/" if below else ""
    return [
        writing.write(directory, f"{prefix}{name}.etrecord", "etrecord", content) for name, content in records.items()
    ]


def _record(manager: ExecutorchProgramManager, method: str, lines: SourceLines) -> bytes:
    """The ETRecord of one method, under the name that the Inspector reads."""
    from executorch.devtools.etrecord import ETRecord

    whole = manager.get_etrecord()
    edge = whole.edge_dialect_program
    graph: ExportedProgram = edge[method] if isinstance(edge, dict) else edge
    _describe_sources(graph, method, lines)
    record = ETRecord(
        edge_dialect_program=graph,
        _debug_handle_map={_METHOD: manager.debug_handle_map[method]},
        _delegate_map={_METHOD: manager.delegate_map[method]},
        _instruction_id_to_num_outs_map={_METHOD: manager.instruction_id_to_num_outs_map[method]},
    )
    saved = io.BytesIO()
    with wrap_library_errors(BuildError, ("methods", method), "ExecuTorch cannot save the graph of this method"):
        record.save(saved)
        content = canonical_archive(_canonical_parts(saved.getvalue()))
        _check_readable(content)
    return content


def _check_readable(content: bytes) -> None:
    """Reads an ETRecord with ExecuTorch, and raises its error: ExecuTorch saves some graphs that it cannot read."""
    from executorch.devtools.etrecord import parse_etrecord

    with temporary("etrecord") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # ExecuTorch leaves the file open
        path = scratch.path / "written.etrecord"
        path.write_bytes(content)
        parse_etrecord(str(path))


def _describe_sources(program: ExportedProgram, method: str, lines: SourceLines) -> None:
    """Gives each node the lines of the model as its stack trace, and removes paths and addresses."""
    import torch

    from etbuild.export.node_sources import remove_addresses

    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
                found = lines.of_node(method, first_name(node)) if node.op == "call_function" else ()
                if found:
                    node.meta["stack_trace"] = "".join(
                        f'  File "{line.file}", line {line.number}, in {line.function}\n    {line.text}\n'
                        for line in found
                    )
    remove_addresses(program.graph_module)


def _canonical_parts(saved: bytes) -> bytes:
    """The same archive, without times and random identifiers in its inner archives."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as archive, zipfile.ZipFile(written, "w") as canonical:
        for name in archive.namelist():
            content = archive.read(name)
            canonical.writestr(name, canonical_archive(content) if content.startswith(_ZIP) else content)
    return written.getvalue()
