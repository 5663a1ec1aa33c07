"""What earlier builds have found out about methods that did not change.

Two results of a method are kept, with keys of their own:

- The program agrees with the exported method. The method's part of the program decides it, the exported method with its
  weights and example inputs, the settings, and the code that compares. The result has the calls.
- The model agrees with the exported method in these calls. The sources of the model decide it, too.

So after an edit of the sources that changes one of three methods, one is compared in the runtime, and the model makes
the calls of all three.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from etplugins.comparison.parts import ComparePlan

NOT = "was not compared with PyTorch:"
"""Begins a note about a method, before the reason."""
IN_PART = "was compared with the model"
"""Begins a note about a method that the model could not call as the program was called."""
NOTES, CALLS, _FIGURES = "notes.json", "calls", "agreement.json"
_RUNTIME, _MODEL = "runtime", "model"
_LARGEST_CALLS = 64 << 20
"""The largest file with calls that is kept, in bytes."""


Agreement = dict[str, tuple[float | None, int]]
"""For each method, the worst ratio of signal to error in decibels, None if nothing differs, and the number of calls."""


def of_runtime(measured: Mapping[str, tuple[float, int]]) -> Agreement:
    """The figures of a comparison as JSON can hold them."""
    return {name: (None if math.isinf(worst) else worst, calls) for name, (worst, calls) in measured.items()}


class Known(Protocol):
    """Where results are kept."""

    def fetch(self, plan: ComparePlan, part: str, program: str, directory: Path, *, sources: bool) -> bool:
        """Fills an empty directory with a result of some methods. Returns False if it is unknown.

        Args:
            plan: The plan for comparing them by themselves. They are compared together.
            part: What they were compared with: `runtime` or `model`.
            program: The digest of their part of the program.
            directory: The directory.
            sources: Whether the sources of the model decide the result.
        """

    def keep(self, plan: ComparePlan, part: str, program: str, directory: Path, *, sources: bool) -> None:
        """Keeps the files in a directory as a result, if the build goes on without an error. The arguments are those of
        `fetch`."""


@dataclass
class Group:
    """Methods that are compared together: those that share state, or one.

    Attributes:
        plan: The plan for comparing them by themselves.
        scratch: A directory for files of the comparison. `made` makes it.
        with_model: Whether one of them is compared with the model, too.
        runs: Whether the runtime here can run them; otherwise only the exported methods are called.
        program: The digest of their part of the program. Empty if it is unknown.
        of_runtime: The notes of the comparison with the exported methods, by method; None before it.
        of_model: The same of the comparison with the model.
        agreement: The figures of the comparison with the exported methods.
    """

    plan: ComparePlan
    scratch: Path
    with_model: bool
    runs: bool = True
    program: str = ""
    of_runtime: dict[str, str] | None = None
    of_model: dict[str, str] | None = None
    agreement: Agreement = field(default_factory=dict)
    _fetched: set[str] = field(default_factory=set)

    @classmethod
    def made(cls, plan: ComparePlan, scratch: Path, with_model: bool, runs: bool = True) -> Group:
        """Makes the directory for files of the comparison."""
        group = cls(plan, scratch, with_model, runs)
        for directory in (scratch, group._place(_RUNTIME), group._place(_MODEL)):
            directory.mkdir()
        return group

    @property
    def names(self) -> list[str]:
        """The names of the methods, sorted."""
        return sorted(self.plan.methods)

    @property
    def calls(self) -> Path:
        """The file with the calls for the model. It is there after a comparison with the exported methods."""
        return self._place(_RUNTIME) / CALLS

    @property
    def needs_model(self) -> bool:
        """Whether the model has to make the calls."""
        return self.of_model is None and self.calls.exists()

    def fetch(self, known: Known, program: str, *, sources: bool) -> None:
        """Looks for results.

        Args:
            known: Where they are.
            program: The digest of the part of the program.
            sources: Whether the sources also decide what the exported methods compute.
        """
        self.program = program
        self.of_runtime = self._fetch(known, _RUNTIME, sources=sources)
        if (figures := self._place(_RUNTIME) / _FIGURES).exists():
            self.agreement = json.loads(figures.read_bytes())
        if self.of_runtime is not None and self.with_model:
            self.of_model = self._fetch(known, _MODEL, sources=True)

    def keep(self, known: Known, *, sources: bool) -> None:
        """Keeps the results, unless a method was left out or compared in part, or its calls take much room."""
        complete = bool(self.program) and self.calls.exists() == self.with_model
        if complete and (not self.with_model or self.calls.stat().st_size <= _LARGEST_CALLS):
            self._keep(known, _RUNTIME, self.of_runtime, sources=sources)
            self._keep(known, _MODEL, self.of_model, sources=True)

    def _fetch(self, known: Known, part: str, *, sources: bool) -> dict[str, str] | None:
        if not known.fetch(self.plan, part, self.program, self._place(part), sources=sources):
            return None
        self._fetched.add(part)
        notes: dict[str, str] = json.loads((self._place(part) / NOTES).read_bytes())
        return notes

    def _keep(self, known: Known, part: str, notes: dict[str, str] | None, *, sources: bool) -> None:
        if notes is None or part in self._fetched or any(each.startswith((NOT, IN_PART)) for each in notes.values()):
            return
        (self._place(part) / NOTES).write_text(json.dumps(notes), "utf-8")
        if part == _RUNTIME:
            (self._place(part) / _FIGURES).write_text(json.dumps(self.agreement), "utf-8")
        known.keep(self.plan, part, self.program, self._place(part), sources=sources)

    def _place(self, part: str) -> Path:
        return self.scratch / part
