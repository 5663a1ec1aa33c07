"""Finds the sources that a plan uses. Says what to declare if one is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable

from etbuild import plugins
from etbuild.errors import ATTRIBUTES_OF_SOURCES, DocumentPath, InputError, Problem, did_you_mean
from etbuild.files.weights_suffixes import suffixes_of_plugins
from etbuild.inputs.sources import UsedSources, follow, locate
from etbuild.key.declared import Inputs
from etbuild.plan.step_plans import ExportPlan


def used_sources(inputs: Inputs, export_plan: ExportPlan, more: Iterable[tuple[str, DocumentPath]] = ()) -> UsedSources:
    """Follows the import statements of an export plan's callables.

    Args:
        inputs: The declared inputs.
        export_plan: The plan.
        more: More callables, such as those of tests, each with the place in the manifest that names it.

    Raises:
        InputError: The module of a callable is not among the sources, or a source is not Python or hides one of
            Python's own modules.
    """
    packages = {"transformers"} if export_plan.model.huggingface is not None else set()
    for suffix in suffixes_of_plugins():
        if any(entry.file.endswith(suffix) for entry in export_plan.weights):
            packages |= {*plugins.group("tensor_file")[suffix].imports}
    packages = packages.union(*(each.samples.packages for each in export_plan.methods.values() if each.samples))
    used = UsedSources(packages=packages)
    problems = []
    roots = [(name.partition(":")[0], path) for name, path in export_plan.callables.items()]
    roots += [(name, ("model", "modules")) for name in export_plan.model.modules]
    roots += [(name.partition(":")[0], path) for name, path in more]
    for module, path in roots:
        if not follow(inputs.source, module, used):
            message = f"the module `{module}` is not among the declared sources"
            problems.append(Problem(message, path, _nearest(inputs, module), attributes=ATTRIBUTES_OF_SOURCES))
    for index, module in enumerate(export_plan.custom_ops.modules):
        if follow(inputs.source, module, used):
            continue
        top = module.partition(".")[0]
        if locate(inputs.source, [top])[1] is None and importlib.util.find_spec(top) is not None:
            used.packages.add(top)
        else:
            message = f"the module `{module}` is neither among the declared sources nor installed"
            place = ("custom_ops", "modules", index)
            problems.append(Problem(message, place, _nearest(inputs, module), attributes=ATTRIBUTES_OF_SOURCES))
    for name in used.sources:
        top = name.removesuffix(".py").split("/")[0]
        if top in sys.stdlib_module_names:
            message = f"the source `{name}` hides Python's own module `{top}`"
            problems.append(Problem(message, ("model", "factory"), "rename the file"))
    InputError.raise_if(problems)
    used.sources = dict(sorted(used.sources.items()))
    return used


def _nearest(inputs: Inputs, module: str) -> str | None:
    """A hint for a module that does not exist: the names that it may have meant, or where it was searched for."""
    if module.endswith(".py"):
        return f"write `{module[:-3]}`, without `.py`"
    known = [name[:-3].replace("/", ".") for name in inputs.sources if name.endswith(".py")]
    where = ", ".join(str(root / f"{module.replace('.', '/')}.py") for root in inputs.roots)
    return did_you_mean(module, known) or (f"there is no {where}" if where else None)
