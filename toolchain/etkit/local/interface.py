"""The Python interface for notebooks and services: `etbuild.load("model.yaml")`.

    model = etbuild.load("model.yaml")
    built = model.build("out")
    (scores,) = built.program.method("forward")(*model.example_inputs("forward"))

Errors that a user can fix are `etbuild.errors.EtbuildError`.
"""

from __future__ import annotations

import html
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etbuild import plugins
from etbuild.errors import InputError, did_you_mean
from etbuild.plan.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.key.declared import Inputs
    from etbuild.results import ProgramMethod
    from etkit.local.prepared_model import PreparedModel


def load(
    manifest: str | Path,
    *,
    variant: str | None = None,
    parameters: Mapping[str, object] = MappingProxyType({}),
    roots: Sequence[str | Path] = (),
    data: Mapping[str, str | Path] = MappingProxyType({}),
) -> Model:
    """Reads and checks a manifest. Imports neither PyTorch nor the code of the model.

    Args:
        manifest: The path of the manifest.
        variant: A variant of it; None for the manifest without one.
        parameters: The values of some of its parameters, by name, or their texts as `--set` takes them.
        roots: Directories to search for sources and data, after that of the manifest.
        data: Data files by the name that the manifest uses. A directory stands for all its files.

    Raises:
        InputError: The manifest has problems. The error lists all of them.
    """
    from etbuild.manifest import validate
    from etbuild.plan.plan import from_manifest

    path, files = Path(manifest), {name: Path(file) for name, file in data.items()}
    request = BuildRequest(path, variant, dict(parameters), [path.parent, *map(Path, roots)], files)
    return Model(request, from_manifest(validate.load(path, None, variant, parameters).data))


def open_program(path: str | Path, named_data: Sequence[str | Path] = ()) -> Program:
    """Opens a program of any build.

    Args:
        path: The path of the `.pte`.
        named_data: The paths of its `.ptd` files; by default those that the index beside it lists.

    Raises:
        InputError: A file is missing, or is no program.
    """
    return Program(Path(path), tuple(map(Path, named_data)))


class Model:
    """A checked manifest: what can be built from it, and the model in PyTorch."""

    def __init__(self, request: BuildRequest, plan: Plan) -> None:
        """Use `load`."""
        self._request, self._plan = request, plan

    def __repr__(self) -> str:
        return f"<etbuild.Model {self.name}: {', '.join(self.methods)}>"

    @property
    def name(self) -> str:
        """The name of the program."""
        return self._plan.name

    @property
    def methods(self) -> list[str]:
        """The names of the methods, sorted."""
        return sorted(self._plan.methods)

    def plan(self) -> dict[str, Any]:
        """The plan as JSON data: the manifest with all defaults."""
        return self._plan.to_json()

    def build(
        self, directory: str | Path | None = None, *, cache: bool = True, cache_directory: str | Path | None = None
    ) -> Built:
        """Builds the program in a process of its own, so that it has the same bytes as with the command `etbuild`.

        Args:
            directory: The directory for the artifacts; None for a temporary one, which is removed with the result.
            cache: Whether steps whose inputs have not changed come from the local cache.
            cache_directory: The directory of that cache; None for the default.

        Raises:
            InputError, BuildError, CheckError: As the command reports. `problems` has each problem with its place.
            Exception: There is a bug in the driver. The message has its traceback.
        """
        from etkit.local import request

        kept = Scratch() if directory is None else None
        place = kept.path if kept is not None else Path(str(directory))
        cached = None if cache_directory is None else Path(cache_directory)
        asked = replace(self._request, directory=place, cache=cache, cache_directory=cached)
        built: Built = request.ask(asked)
        return replace(built, _kept=kept)

    def example_inputs(self, method: str) -> tuple[Any, ...]:
        """The positional example inputs of a method, as its manifest describes them.

        Raises:
            InputError: There is no such method, or a file is missing.
            BuildError: The model or a factory failed.
        """
        self._check(method)
        with self._prepared() as prepared:
            positional, _ = prepared.inputs[method]
            return positional

    def exported_program(self, method: str) -> ExportedProgram:
        """A method as `torch.export` exports it, with its weights, quantization and passes, before it is lowered.

        Raises:
            InputError: There is no such method, or a file is missing.
            BuildError: The model cannot be exported.
        """
        self._check(method)
        with self._prepared() as prepared:
            return prepared.exported(method)

    def _check(self, method: str) -> None:
        if method not in self._plan.methods:
            raise InputError.of(f"{self.name} has no method `{method}`", did_you_mean(method, self.methods))

    @contextmanager
    def _prepared(self) -> Iterator[PreparedModel]:
        """Makes the model in PyTorch, which is valid within this context."""
        from etbuild.guard.reads import watched_reads
        from etbuild.inputs.step_context import StepContext
        from etbuild.inputs.user_code import importable
        from etbuild.key.import_graph import used_sources
        from etbuild.surroundings.random_seeds import seed
        from etkit.local.prepared_model import PreparedModel

        inputs = self._request.inputs()
        used = used_sources(inputs, self._plan.export_plan)
        seed(self._plan.export_plan.model.seed)  # modules may draw numbers when they are imported
        with importable(used, inputs.data.values(), watched_reads):
            yield PreparedModel.of_plan(self._plan, StepContext(inputs))


@dataclass(frozen=True)
class BuildRequest:
    """What a model is built from, and what `Model.build` asks of the process that builds it.

    Attributes:
        manifest: The manifest.
        variant: The variant of it; None for the manifest without one.
        parameters: For some of its parameters, a value or its text.
        roots: Directories to search for sources and data.
        data: Data files and directories by name.
        directory: The directory for the artifacts.
        cache: Whether to use the local cache.
        cache_directory: The directory of that cache; None for the default.
    """

    manifest: Path
    variant: str | None
    parameters: dict[str, object]
    roots: list[Path]
    data: dict[str, Path]
    directory: Path = Path()
    cache: bool = True
    cache_directory: Path | None = None

    def inputs(self) -> Inputs:
        """The sources and data that the build may read."""
        from etbuild.key.declared import Inputs

        return Inputs.named({}, self.data, self.roots)


@dataclass(frozen=True)
class Built:
    """A finished build.

    Attributes:
        directory: The directory of the artifacts.
        key: The key of the program: a digest of everything that it was made of.
        artifacts: The paths of the artifacts.
    """

    directory: Path
    key: str
    artifacts: list[Path]
    _kept: Scratch | None = field(default=None, repr=False)

    @cached_property
    def program(self) -> Program:
        """The program, ready to run in this process."""
        path = next(path for path in self.artifacts if path.suffix == ".pte")
        return Program(path, (), self._kept)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report: facts about each method, as JSON data."""
        return self._json(".report.json")

    @cached_property
    def index(self) -> dict[str, Any]:
        """The index: digests of the artifacts and of what they were made of, as JSON data."""
        return self._json(".index.json")

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker of experiments, by names that each of them takes: bytes, memory, delegated share."""
        kinds = {"program": 0, "named_data": 0}
        for artifact in self.index["artifacts"]:
            if artifact["kind"] in kinds:
                kinds[artifact["kind"]] += artifact["size"]
        found: dict[str, float] = {f"{kind}_bytes": size for kind, size in kinds.items()}
        for name, method in sorted(self.report["methods"].items()):
            found[f"{name}/memory_bytes"] = sum(method["memory"])
            if (operators := method.get("operators")) is not None:
                inside = sum(sum(counts.values()) for counts in operators["delegated"].values())
                outside = sum(operators["fallback"].values())
                found[f"{name}/operators_outside"] = outside
                found[f"{name}/delegated"] = inside / (inside + outside) if inside + outside else 1.0
        return found

    def _json(self, suffix: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(next(p for p in self.artifacts if p.name.endswith(suffix)).read_bytes())
        return found

    def _repr_html_(self) -> str:
        return self.program._repr_html_()


class Program:
    """A program in ExecuTorch's runtime, in this process. It keeps its state from one call to the next."""

    def __init__(self, path: Path, named_data: Sequence[Path], kept: object = None) -> None:
        """Use `open_program` or `Built.program`."""
        from etplugins.runtime import program_files

        self._files = program_files.read(path, named_data)
        self._scratch = Scratch()
        self._kept = kept  # keeps the directory of its files, which the program opens late
        self._session: Any = None
        self._loads: set[str] = set()

    def __repr__(self) -> str:
        return f"<etbuild.Program {self._files.program.name}: {', '.join(self.methods)}>"

    @property
    def methods(self) -> list[str]:
        """The names of the methods, sorted."""
        return sorted(self._files.facts["methods"])

    def signature(self, method: str) -> ProgramMethod:
        """The inputs and outputs of a method (dtypes and shapes), its operators and its memory, as JSON data.

        Raises:
            InputError: There is no such method.
        """
        return self._files.method(method)

    def method(self, name: str) -> Callable[..., tuple[torch.Tensor | float | None, ...]]:
        """A method of the program. It takes the inputs one after the other, also in lists, tuples and dicts.

        It returns a tuple of outputs.

        Raises:
            InputError: There is no such method; when it is called: the inputs do not fit.
            BuildError: When it is called: the runtime refuses the program or the inputs.
        """
        self._files.method(name)

        def call(*inputs: Any) -> tuple[torch.Tensor | float | None, ...]:
            from torch.utils import _pytree as pytree

            leaves = pytree.tree_leaves(inputs, is_leaf=lambda value: value is None)
            return tuple(self._loaded(name).call(name, leaves))

        return call

    def page(self, against: Program | str | Path | None = None) -> Page:
        """The HTML page of the program, as `etbuild inspect --html` writes it. A notebook shows it.

        Args:
            against: Another program to compare this one with: itself, or the path of its `.pte`.

        Raises:
            InputError: A file is damaged, or the other one is not a program.
        """
        write = plugins.load("page", "program")
        other = against._files.program if isinstance(against, Program) else against
        return Page(write(self._files.program, None if other is None else Path(other)))

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def reset(self) -> None:
        """Forgets the state: the next call begins with a freshly loaded program."""
        self._session = None
        self._loads.clear()

    def _loaded(self, method: str) -> Any:
        """The session, which has loaded the method."""
        from etplugins.runtime.native_log import native_log_off
        from etplugins.runtime.session import Session

        if method not in self._loads:
            with native_log_off():
                self._session = self._session or Session(self._files, self._scratch.path)
                with suppress(RuntimeError):  # the call reports it
                    self._session.load(method)
            self._loads.add(method)
        return self._session


@dataclass(frozen=True, repr=False)
class Page:
    """The HTML page of a program. A notebook shows it in a frame.

    Attributes:
        html: The page in UTF-8. It loads no other files.
    """

    html: bytes

    def write(self, path: str | Path) -> None:
        """Writes the page to a file."""
        Path(path).write_bytes(self.html)

    def _repr_html_(self) -> str:
        # In a frame, the page's styles and scripts reach nothing else of the notebook.
        text = html.escape(self.html.decode())
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{text}" style="width: 100%; height: 40rem; border: 0"></iframe>'
        )


class Scratch:
    """A directory that is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
