"""Edits of the driver, as upgrades make them, and what each runs again: on the command line, and in build rules.

There are two programs: one of XNNPACK without plug-ins, and one with a LoRA adapter. Neither of their targets names its
plug-ins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ALL = "export lower compare report"


@dataclass(frozen=True)
class Edit:
    """An edit of a file of the driver. It adds a line of code, unless it replaces a text.

    Attributes:
        name: What it is.
        file: The file, below `toolchain`.
        runs: The steps that the command line runs for the program without plug-ins.
        of_plugin: The same for the program with an adapter; None: the same steps.
        also: What else build rules run: planning, what is around steps, steps that cannot know that nothing changed.
        also_of_plugin: The same for the program with an adapter; None: the same steps.
        old: The text that it replaces.
        new: What it writes in place of that.
    """

    name: str
    file: str
    runs: str = ""
    of_plugin: str | None = None
    also: str = ""
    also_of_plugin: str | None = None
    old: str = ""
    new: str = ""

    def steps(self, program: str, in_rules: bool) -> set[str]:
        """The steps that run for the program `net` or `adapted`."""
        runs, also = self.runs, self.also
        if program != "net":
            runs = runs if self.of_plugin is None else self.of_plugin
            also = also if self.also_of_plugin is None else self.also_of_plugin
        return {*runs.split(), *(also.split() if in_rules else [])}

    @contextmanager
    def made(self, toolchain: Path) -> Iterator[None]:
        """Makes the edit, and undoes it at the end."""
        file = toolchain / self.file
        before = file.read_text("utf-8")
        assert self.old in before, f"{self.file} has no {self.old!r}"
        after = before.replace(self.old, self.new, 1) if self.old else before + "\nEDITED = 1\n"
        file.write_text(after, "utf-8")
        try:
            yield
        finally:
            file.write_text(before, "utf-8")


EDITS = [
    Edit("a comment", "etbuild/lower/passes.py", old="import annotations", new="import annotations  # for types"),
    Edit("a docstring", "etplugins/upstream/norms.py", old='"""', new='"""In other words. '),
    Edit("a help text", "etbuild/cli/lower.py", old='help="use the result', new='help="take the result'),
    Edit(
        "a description of a key",
        "etbuild/schemas/model.schema.json",
        old='"description": "',
        new='"description": "So: ',
    ),
    Edit("a backend's code", "etplugins/coreml/backend.py"),
    Edit(
        "a backend's options", "etplugins/coreml/backend-coreml.schema.json", old='"type"', new='"title": "New", "type"'
    ),
    Edit("a task's code", "etplugins/transformers/tasks.py"),
    Edit("a format of checkpoints", "etplugins/packed/gguf_file.py"),
    Edit("a quantization", "etplugins/quantize/pt2e.py"),
    Edit("adapters", "etplugins/lora/layers.py", of_plugin=ALL, also_of_plugin="plan"),
    Edit("checks of manifests", "etbuild/manifest/validate.py", "report", also="plan"),
    Edit("the plan", "etbuild/plan/normalize.py", ALL, also="plan"),
    Edit("the export", "etbuild/export/export_methods.py", ALL),
    Edit("modules", "etbuild/model/checkpoint.py", ALL),
    Edit("lowering", "etbuild/lower/passes.py", "lower report", also="compare"),
    Edit("the emitter", "etbuild/emit/merge.py", "lower report", also="compare"),
    Edit("templates", "etplugins/templates/binding.py", "lower report"),
    Edit("a workaround", "etplugins/upstream/norms.py", ALL),
    Edit("a switch for time", "etplugins/accelerate/check_once.py", ALL),
    Edit("the comparison", "etplugins/comparison/accuracy.py", "compare", also="plan"),
    Edit("the report", "etbuild/report/checks.py", "report"),
    Edit("the tokenizer", "etplugins/tokenizer/files.py", "report", "", also="plan report"),
    Edit("the version", "etbuild/version/__init__.py", "report", old='VERSION = "', new='VERSION = "1'),
    Edit("tests in manifests", "etplugins/model_tests/parts.py", also="plan"),
    Edit("what reads files", "etbuild/files/writing.py", ALL, also="plan"),
    Edit("processes", "etbuild/processes/forked.py", also=f"plan {ALL}"),
    Edit("keys", "etbuild/key/key.py", also=f"plan {ALL}"),
    Edit("a verb of a step", "etbuild/cli/export.py", also="export"),
    Edit("a verb for people", "etkit/building/verbs/cache.py"),
    Edit("the worker", "etplugins/worker/server.py", also=f"plan {ALL}"),
]
