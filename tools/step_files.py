"""Computes which files of the driver each step runs, from its imports, and writes `toolchain/etbuild/step_files.bzl`.

`make reference`, or `python -m tools.step_files`. A test fails if the file is not current.

A key leaves out what cannot change what a step writes that succeeds. The imports tell this of a module if

- nothing of it reaches the step: its names stand there only after `raise` and `except`, or as a context manager after
  `with` and without `as`; and it reaches nothing of the step: it and all that it imports use nothing but Python's own
  library, and import no module by its name. What is left to it is the process: streams, signals, messages, time.
- it has only a docstring, names for users, or types of data, which are dictionaries when the code runs.
- it is the schema of a file that a step reads: the file is refused, or it is read as it would be without the schema.

What imports cannot tell, whoever writes a guard sees to: it swallows no error, and sets no variable of the environment
(`processes.environment` does, and is in each key). If a step catches an error and goes on, it writes at most the name
of the error's class. `OUTSIDE` lists modules around steps for which this rule is too simple.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "toolchain"
TABLE = ROOT / "etbuild" / "step_files.bzl"
PACKAGE = "etbuild"

# What each step begins with. The steps are those of `build`, and the verbs of the build rules' actions.
# Each runs in the environment that `processes.environment` makes.
STEPS: Mapping[str, tuple[str, ...]] = {
    "plan": ("etbuild.steps.plan", "etbuild.processes.environment"),
    "export": ("etbuild.steps.export", "etbuild.processes.environment"),
    "lower": ("etbuild.steps.lower", "etbuild.processes.environment"),
    "compare": ("etbuild.steps.compare", "etbuild.processes.environment"),
    "report": ("etbuild.steps.report", "etbuild.processes.environment"),
}
OUTSIDE = "outside"
# What only some programs use. A backend is a part of its own: its name is that of the part.
PARTS: Mapping[str, tuple[str, ...]] = {
    "adapters": ("etplugins.lora", "etbuild.model.tensor_digests"),
    "checkpoints": ("etbuild.model.checkpoint", "etbuild.model.packed.kept", "etbuild.model.tensor_digests"),
    "computed_weights": ("etbuild.export.computed_weights",),
    "constants": ("etbuild.export.constant_methods",),
    "custom_ops": ("etbuild.export.custom_ops",),
    "gguf": ("etbuild.model.gguf_file",),
    # What runs a step's own functions in other processes, digests packages, and describes failures. It gives steps
    # values: what these functions return, and texts that no file of a step holds.
    OUTSIDE: (
        "etbuild.comparison.locate",
        "etbuild.errors",
        "etbuild.folding",
        "etbuild.foreign_errors",
        "etbuild.inputs.distributions",
        "etbuild.inputs.toolchain",
        "etbuild.json_schema",
        "etbuild.lower.failed_nodes",
        "etbuild.processes.forked",
        "etbuild.processes.handover",
        "etbuild.steps.apart",
    ),
    "huggingface": (
        "etbuild.model.huggingface",
        "etbuild.model.encoder_decoder",
        "etbuild.model.image_text",
        "etbuild.model.single_call",
        "etbuild.model.packed.files",
        "etbuild.model.packed.packing",
    ),
    "names_of_tensors": ("etbuild.model.tensor_names",),
    "program_files": ("etplugins.pt2_files",),
    "quantize": ("etbuild.quantize",),
    "recipe": ("etbuild.export.recipe",),
    "runner": ("etbuild.export.runner_contract",),
}
# What a part imports of others only for programs that have these, too.
_ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "checkpoints": ("gguf", "huggingface", "names_of_tensors"),
    "huggingface": ("gguf",),
}
# What an action of a build rule runs around its step. It is in no key either, and the action could not run without it.
ACTION = "action"
_AROUND = ("etbuild.__main__", "etbuild.cli.main")
_WORKERS = ("etbuild.worker.server", "etbuild.worker.warm_up")
_WITH_WORKERS = ("export", "lower", "compare")
_PROVIDED = {
    "etplugins.lora.changes",
    "etplugins.pt2_files.files",
}  # steps find these by names
# Functions of backends and of workers that only these steps call, and what the functions import.
_CALLED_BY: Mapping[str, frozenset[str]] = {
    "_warm_lowering": frozenset(("lower",)),
    "check_emitted": frozenset(("lower",)),
    "filled": frozenset(("lower",)),
    "lowering_context": frozenset(("lower",)),
    "stored_weights": frozenset(("lower",)),
}
# The step that also calls them, for a message: `comparison.locate` lowers a program again, to find its wrong operator.
_LOWERS_AGAIN = "compare"
# What the module of a guard may import: Python's own library, but not what imports modules by name or draws numbers.
_HARMLESS = {PACKAGE, *sys.stdlib_module_names} - {"importlib", "pkgutil", "random", "runpy"}
# The modules of this package import others of it by names that stand in their text.
_BY_NAME = "etbuild.upstream.accelerate."
_HEADER = '''\
"""Which files of the driver each step runs, and which of them only for programs with a certain part: `STEP/PART`.
The parts `action` and `outside` are in no key. Keys have the part `plugins` as digests of whole plug-ins.

`python -m tools.step_files` writes this file from the imports, and a test fails if it is not current. The keys of steps
and the inputs of actions hold these files and no others.
"""

'''


@dataclass(frozen=True)
class Source:
    """A file of the driver.

    Attributes:
        text: Returns its text.
        identity: Differs for other texts.
    """

    text: Callable[[], str]
    identity: str


@dataclass(frozen=True)
class Uses:
    """What the code of a module refers to.

    Attributes:
        modules: Names of modules that it imports, also inside functions. Some may be names of something else.
        guards: Those of `modules` that it uses for nothing but guards: see `_only_guards`.
        is_empty: Whether all that it has is for people and type checkers.
        words: Its text constants, one of which may be the name of a schema.
        by_function: The same as `modules`, for imports in the functions of `_CALLED_BY`, which `modules` leaves out.
    """

    modules: frozenset[str]
    guards: frozenset[str]
    is_empty: bool
    words: frozenset[str]
    by_function: Mapping[str, frozenset[str]]


def step_files(files: Mapping[str, Source], backends: Mapping[str, str]) -> dict[str, list[str]]:
    """The steps of each file: `STEP`, or `STEP/PART` if a step runs it only for programs with this part.

    Args:
        files: The driver's files by path, such as `etbuild/build.py`.
        backends: The module of each backend, by the backend's name.
    """
    drivers = {step: _Driver(files, step) for step in STEPS}
    driver = drivers["plan"]
    parts = {**PARTS, **{name: (module,) for name, module in backends.items()}}
    below = {part: {module for root in roots for module in driver.below(root)} for part, roots in parts.items()}
    apart = set().union(*below.values())
    steps = {roots[0] for roots in STEPS.values()}
    tags: dict[str, set[str]] = defaultdict(set)
    for step, roots in STEPS.items():
        driver = drivers[step]
        base, waiting = driver.reached(roots, apart | steps - set(roots))
        for path in driver.paths(base):
            tags[path].add(driver.tag(path))
        if "etbuild.backends" in base:
            waiting |= set(backends.values())
        waiting |= _PROVIDED & apart if step in _WITH_WORKERS else set()
        # A part may import another one: then its files are in both.
        before: set[str] = set()
        while before != waiting:
            before = {*waiting}
            for part in parts.keys() - {OUTSIDE}:
                own = {module for module in below[part] & before if not driver.is_empty(module)}
                others = below[OUTSIDE].union(*(below[other] for other in _ONLY_WITH.get(part, ()))) - below[part]
                reached, left = driver.reached(own, steps | others, base)
                waiting |= left - steps
                for path in driver.paths(reached - base):
                    tags[path].add(driver.tag(path, part))
        outside = {module for module in waiting if module not in apart or driver.is_empty(module)}
        if step == _LOWERS_AGAIN:
            outside |= driver.called({module for name in backends for module in below[name]})
        reached, _ = driver.reached(outside | waiting & below[OUTSIDE], steps, base, around=True)
        for path in driver.paths(reached - base):
            tags[path].add(driver.tag(path, OUTSIDE))
        for name in backends if step == "plan" else ():  # only the manifest's options are checked against their schemas
            schemas = (f"{PACKAGE}/schemas/{kind}-{name}.schema.json" for kind in ("backend", "quantizer"))
            for path in files.keys() & set(schemas):
                tags[path].add(f"{step}/{name}")
        known = {path for path, of in tags.items() if any(each.partition("/")[0] == step for each in of)}
        around = {*_AROUND, f"etbuild.cli.{step}", *(_WORKERS if step in _WITH_WORKERS else ())}
        reached, _ = driver.reached(around, steps - set(roots), around=True)
        for path in {*driver.paths(reached)} - known:
            tags[path].add(f"{step}/{ACTION}")
    return {path: sorted(steps) for path, steps in sorted(tags.items())}


class _Driver:
    """The imports of the driver."""

    def __init__(self, files: Mapping[str, Source], step: str) -> None:
        self._files = files
        self._step = step
        self._modules = {_module_name(path): path for path in files if path.endswith(".py")}
        self._reach_nothing: dict[str, bool] = {}

    def below(self, name: str) -> set[str]:
        """The modules of a package; a module itself."""
        return {each for each in self._modules if each == name or each.startswith(f"{name}.")}

    def reached(
        self, roots: Iterable[str], apart: Iterable[str], known: Iterable[str] = (), *, around: bool = False
    ) -> tuple[set[str], set[str]]:
        """The modules that these import, themselves included; and those that are imported and not followed.

        Args:
            roots: Where to begin.
            apart: Modules that are not followed.
            known: Modules that are left out, with all that they import.
            around: Whether modules are followed too that give nothing to those that import them.
        """
        apart, known = frozenset(apart), frozenset(known)
        found: set[str] = set()
        left: set[str] = set()
        waiting = [root for root in roots if root in self._modules]
        while waiting:
            name = waiting.pop()
            if name in apart:
                left.add(name)
            elif name not in found and name not in known:
                found.add(name)
                imported = {*self._imported(name)}
                unused = set() if around else {each for each in imported if self._gives_nothing(each, name)}
                left |= unused
                waiting += imported - unused
        return found, left - found

    def _gives_nothing(self, name: str, user: str) -> bool:
        """Whether a module gives no value to one that imports it: it has none, or is there to guard."""
        return self.is_empty(name) or (name in self._uses(user).guards and self._can_only_guard(name))

    def is_empty(self, name: str) -> bool:
        """Whether all that a module has is for people and type checkers."""
        return self._uses(name).is_empty

    def _can_only_guard(self, name: str) -> bool:
        """Whether what a module does after `with` can reach nothing that a step computes with."""
        if name not in self._reach_nothing:
            imported, _ = self.reached([name], (), around=True)
            uses = [self._uses(module) for module in imported]
            modules = {each for use in uses for each in use.modules.union(*use.by_function.values())}
            tops = {each.partition(".")[0] for each in modules}
            self._reach_nothing[name] = tops <= _HARMLESS
        return self._reach_nothing[name]

    def _imported(self, name: str) -> Iterator[str]:
        parts = name.split(".")
        yield from (".".join(parts[:end]) for end in range(1, len(parts)))
        uses = self._uses(name)
        yield from uses.modules & self._modules.keys()
        for function, modules in uses.by_function.items():
            if self._step in _CALLED_BY[function]:
                yield from modules & self._modules.keys()
        if f"{name}.".startswith(_BY_NAME):
            yield from {f"{_BY_NAME}{word}" for word in self._uses(name).words} & self._modules.keys()

    def called(self, modules: Iterable[str]) -> set[str]:
        """What the functions of `_CALLED_BY` in modules import."""
        imported = set().union(*(each for name in modules for each in self._uses(name).by_function.values()))
        return imported & self._modules.keys()

    def paths(self, modules: Iterable[str]) -> Iterator[str]:
        """The files of modules, and the schemas that they name."""
        for name in modules:
            yield self._modules[name]
            for word in self._uses(name).words:
                if (schema := f"{PACKAGE}/schemas/{word.partition('#')[0]}.schema.json") in self._files:
                    yield schema

    def tag(self, path: str, part: str = "") -> str:
        """The tag of a file that the step runs, of a part or of all programs.

        A manifest gets its meaning from its schema. Any other file is only refused if it does not fit its schema.
        """
        if path.endswith(".json") and self._step != "plan":
            part = OUTSIDE
        return f"{self._step}/{part}" if part else self._step

    def _uses(self, name: str) -> Uses:
        source = self._files[self._modules[name]]
        return _uses(source.identity, source.text)


_read: dict[str, Uses] = {}


def _uses(identity: str, text: Callable[[], str]) -> Uses:
    if identity not in _read:
        _read[identity] = _of_code(ast.parse(text()))
    return _read[identity]


def _of_code(tree: ast.Module) -> Uses:
    modules, words = set[str](), set[str]()
    by_function: dict[str, set[str]] = defaultdict(set)
    waiting: list[tuple[ast.AST, set[str]]] = [(tree, modules)]
    while waiting:
        node, found = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += ((each, found) for each in node.orelse)
            continue
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            continue  # who uses a name of a package that is imported late also imports the module that has it
        if isinstance(node, ast.FunctionDef) and node.name in _CALLED_BY:
            found = by_function[node.name]
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        waiting += ((each, found) for each in ast.iter_child_nodes(node))
    return Uses(
        frozenset(modules),
        frozenset(_only_guards(tree)),
        _is_for_readers(tree),
        frozenset(words),
        {name: frozenset(each) for name, each in by_function.items()},
    )


def _is_for_readers(tree: ast.Module) -> bool:
    """Whether all that a module has is for people and type checkers: docstrings, lists of names, and the types of data,
    which are dictionaries when the code runs."""
    types = {"Any", "TypedDict", "bool", "dict", "float", "int", "list", "str"}
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) if _is_typed_dict(statement, types):
                types.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_type(value, types):
                types.add(name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple()):
                pass
            case ast.Assign(targets=[ast.Name(id="TYPE_CHECKING")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.FunctionDef(name="__getattr__" | "__dir__") | ast.Expr(value=ast.Constant()):
                pass
            case ast.ImportFrom(module="__future__" | "typing"):
                pass
            case _:
                return False
    return True


def _is_typed_dict(statement: ast.ClassDef, types: Collection[str]) -> bool:
    """Whether a class is a `TypedDict` that names its keys, and has no code."""
    fields = [each for each in statement.body if not isinstance(each, ast.Expr)]
    plain = all(isinstance(each, ast.AnnAssign) and each.value is None for each in fields)
    bases = [ast.unparse(base) for base in statement.bases]
    decorators = [ast.unparse(each) for each in statement.decorator_list]
    return plain and decorators in ([], ["final"]) and bases != [] and {*bases} <= {*types}


def _is_type(value: ast.expr, types: Collection[str]) -> bool:
    """Whether an expression is a type: `dict[str, int]`, `int | None`, or the call of `TypedDict`."""
    match value:
        case ast.Call(func=ast.Name(id="TypedDict")) | ast.Constant(value=None):
            return True
        case ast.Name(id=name):
            return name in types
        case ast.BinOp(left=left, op=ast.BitOr(), right=right) | ast.Subscript(value=left, slice=right):
            return _is_type(left, types) and _is_type(right, types)
        case ast.Tuple(elts=parts):
            return all(_is_type(part, types) for part in parts)
    return False


def _only_guards(tree: ast.Module) -> Iterator[str]:
    """The modules that code uses for nothing but guards, which can make it fail and give it no value: a name of such a
    module stands only in `raise`, after `except`, or as a context manager after `with` without `as`."""
    names, guards = defaultdict[str, set[ast.AST]](set), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names[node.id].add(node)
        elif isinstance(node, ast.Raise):
            guards |= {*ast.walk(node)}
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            guards |= {*ast.walk(node.type)}
        elif isinstance(node, ast.withitem) and node.optional_vars is None:
            manager = node.context_expr.func if isinstance(node.context_expr, ast.Call) else node.context_expr
            while isinstance(manager, ast.Attribute):
                manager = manager.value
            guards.add(manager)
    used = {name for name, nodes in names.items() if not nodes <= guards}
    imported = [(node, alias) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    uses = defaultdict[str, set[str]](set)
    for node, alias in imported:
        for module in (f"{node.module}", f"{node.module}.{alias.name}"):
            uses[module].add(alias.asname or alias.name)
    whole = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    yield from (module for module, of_module in uses.items() if module not in whole and not of_module & used)


def _module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def files_of_checkout(root: Path = ROOT) -> dict[str, Source]:
    """The driver's files in a checkout."""
    paths = [path for pattern in ("**/*.py", "schemas/*.json") for path in (root / PACKAGE).glob(pattern)]
    return {path.relative_to(root).as_posix(): _source(path) for path in sorted(paths)}


def _source(path: Path) -> Source:
    text = path.read_text("utf-8")
    return Source(lambda: text, text)


@lru_cache(1)
def backend_modules() -> dict[str, str]:
    """The module of each backend of the driver."""
    from etbuild import backends

    return {name: f"etbuild.backends.{place.rpartition('.')[0]}" for name, place in backends._CLASSES.items()}


def _plugin_files(root: Path) -> Iterator[str]:
    for pattern in ("**/*.py", "*/*.json"):
        yield from (path.relative_to(root).as_posix() for path in (root / "etplugins").glob(pattern))


def table(root: Path = ROOT) -> str:
    """The text of `step_files.bzl`, as buildifier formats it."""
    plugins = {path: _source(root / path) for path in _plugin_files(root) if path.endswith(".py")}
    rows = step_files({**files_of_checkout(root), **plugins}, backend_modules())
    rows |= {path: sorted(f"{step}/plugins" for step in STEPS) for path in sorted(_plugin_files(root))}
    lines = []
    for path, steps in rows.items():
        listed = ", ".join(json.dumps(step) for step in steps)
        lines.append(f"    {json.dumps(path)}: [{listed}],\n")
    return f"{_HEADER}STEP_FILES = {{\n{''.join(lines)}}}\n"


def main() -> None:
    """Writes the table."""
    TABLE.write_text(table(), "utf-8")


if __name__ == "__main__":
    main()
