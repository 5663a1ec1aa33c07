"""Imports transformers once for the processes that make the model, which are copies of this one.

One process exports the model, and another one makes it for the comparison. Importing transformers takes each of them
longer than making most models. Code of the model may change how a package imports: it may set an environment variable,
or replace a function of PyTorch. So transformers is imported early only if all sources import it before they do
anything else.
"""

from __future__ import annotations

import ast
from contextlib import suppress

from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import Stage, silent
from etbuild.plan.step_plans import ExportPlan
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

_TRANSFORMERS = "transformers"
_HARMLESS = {"numpy", "torch", _TRANSFORMERS}
"""Packages whose import does not change what another import does."""


def begins_with_transformers(plan: ExportPlan, used: UsedSources) -> bool:
    """Whether the processes that make the model import transformers before code of others runs."""
    custom = plan.custom_ops.modules or plan.custom_ops.libraries
    return _TRANSFORMERS in used.packages <= _HARMLESS and not custom and all(map(_does, used.contents.values()))


def _does(source: bytes) -> bool:
    """Whether a source imports transformers before its first other statement, or has no other one."""
    statements = ast.parse(source).body
    if statements and ast.get_docstring(ast.Module(statements, [])) is not None:
        del statements[0]
    for statement in statements:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [] if statement.level else [statement.module or ""]
        else:
            return False
        if any(name.split(".")[0] == _TRANSFORMERS for name in names):
            return True
    return True


def import_transformers(stage: Stage) -> None:
    """Imports PyTorch and transformers. The export reports what is missing."""
    from etbuild.steps.export import import_torch

    with stage("import transformers"), library_messages_off(), stdout_for_results(), suppress(ImportError):
        import_torch(silent)
        with import_without_gc(_TRANSFORMERS):
            import transformers.modeling_utils  # noqa: F401
