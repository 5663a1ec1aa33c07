"""Writes the operators of programs as `selected_operators.yaml`, which ExecuTorch's selective build reads.

ExecuTorch and torchgen make the content, without PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError
from etbuild.files.scratch import temporary
from etbuild.processes import forked


def make(programs: Sequence[Path]) -> bytes:
    """The content of `selected_operators.yaml` for some programs.

    Operators are sorted, and `debug_info` names the files of the programs that call an operator, without directories.

    Args:
        programs: Files that `program_kernels.read` could read.

    Raises:
        BuildError: ExecuTorch could not read a program.
    """
    import yaml
    from torchgen.selective_build.selector import SelectiveBuilder, combine_selective_builders

    # ExecuTorch's reader is native code, which does not check what it reads: a damaged file ends its process.
    tasks = {
        f"reading {path.name} ({number})": functools.partial(_of_program, path) for number, path in enumerate(programs)
    }
    selections = forked.run(tasks, 1).values()
    builders = [SelectiveBuilder.from_yaml_dict(selection) for selection in selections]
    made = functools.reduce(combine_selective_builders, builders).to_dict()
    for operator in made.get("operators", {}).values():
        operator["debug_info"] = sorted(set(operator["debug_info"]))
    made["et_kernel_metadata"] = {name: sorted(set(keys)) for name, keys in made.get("et_kernel_metadata", {}).items()}
    text: str = yaml.safe_dump(made, default_flow_style=False)
    return text.encode()


def _of_program(path: Path) -> dict[str, Any]:
    """What ExecuTorch selects for one program. Runs in a child."""
    import yaml
    from executorch.codegen.tools import gen_oplist

    try:
        with temporary("kernels") as scratch, contextlib.redirect_stdout(io.StringIO()):  # its messages
            made = scratch.path / "selected_operators.yaml"
            gen_oplist.gen_oplist(made, model_file_path=str(path))
            selection: dict[str, Any] = yaml.safe_load(made.read_bytes())
    except Exception as error:  # errors of Python and of the native reader
        raise BuildError.of(f"{path}: ExecuTorch cannot list its operators: {error}") from error
    for operator in selection.get("operators", {}).values():
        operator["debug_info"] = [path.name]
    return selection
