"""Writes and updates the targets of manifests in a BUILD or BUCK file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from etbuild import plugins
from etbuild.errors import InputError, Problem
from etbuild.manifest import variants, yaml_document
from etbuild.plan.expectations import INPUTS, plugins_to_list
from etkit.authoring.targets import wanted as wanted_of
from etkit.authoring.targets.starlark import (
    Starlark,
    argument,
    called,
    entries,
    items,
    lines,
    rule_call,
    text,
    texts,
    written,
)
from etkit.authoring.targets.wanted import Wanted

_REQUIRED = ("named_data", "sharded_named_data")
_OPTIONAL = ("backends", "methods", "plugins")
_MAY_BE_EMPTY = (*_REQUIRED, "plugins")  # an empty list of methods is the user's choice
_COMPUTED = "it is computed; it is left alone"
_LAST = {"name": 0, "srcs": 1, "deps": 3, "visibility": 4}  # buildifier's order; all others are sorted between


@dataclass(frozen=True)
class System:
    """A build system.

    Attributes:
        name: Its name, for people.
        build_files: The names of its files for packages; the first that exists counts.
        new: The name of a new one.
        label: Where the rules are.
        roots: The root of a workspace has one of these files.
    """

    name: str
    build_files: tuple[str, ...]
    new: str
    label: str
    roots: tuple[str, ...]

    def root(self, directory: Path) -> Path | None:
        """The root of the workspace that a directory is in; None if it is in none."""
        here = directory.resolve()
        found = (above for above in (here, *here.parents) if any((above / name).exists() for name in self.roots))
        return next(found, None)

    def build_file(self, directory: Path) -> Path | None:
        """The file of a package; None if the directory is no package."""
        return next((directory / name for name in self.build_files if (directory / name).is_file()), None)


BAZEL = System(
    "Bazel",
    ("BUILD.bazel", "BUILD"),
    "BUILD",
    "@rules_executorch//rules:defs.bzl",
    ("MODULE.bazel", "REPO.bazel", "WORKSPACE", "WORKSPACE.bazel"),
)
BUCK2 = System(
    "Buck2", ("BUCK.v2", "BUCK"), "BUCK", "@rules_executorch//contrib/buck2:defs.bzl", (".buckroot", ".buckconfig")
)


@dataclass
class Update:
    """The new text of a file.

    Attributes:
        path: The file.
        before: Its content; None if there is none.
        after: Its new content.
        notes: What is left to the user.
        disagrees: Whether one of the notes says that a target does not agree with its manifest.
        unread: Whether one of the notes says that a part of a target cannot be read.
    """

    path: Path
    before: bytes | None
    after: bytes
    notes: list[str] = field(default_factory=list)
    disagrees: bool = False
    unread: bool = False


def update(manifests: list[Path], system: System, root: Path) -> list[Update]:
    """Computes the new files for manifests.

    Args:
        manifests: The manifests.
        system: The build system.
        root: The root of the workspace.

    Raises:
        InputError: Manifests have problems, or files cannot be parsed. It names all of them.
    """
    files: dict[Path, _Package] = {}
    problems: list[Problem] = []
    for manifest in manifests:
        try:
            directory = _package(manifest, system, root)
            path = system.build_file(directory) or directory / system.new
            if path not in files:
                files[path] = _Package(path, system, root)
            files[path].take(manifest)
        except InputError as error:  # the other manifests may have problems, too
            problems += [each for each in error.problems if each not in problems]
    InputError.raise_if(problems)
    return [each.result() for each in files.values()]


def _package(manifest: Path, system: System, root: Path) -> Path:
    """The directory of the package that has the manifest's target: the manifest's own, unless one above has it."""
    for directory in manifest.parent.resolve().parents:
        if not directory.is_relative_to(root):
            break
        path = system.build_file(directory)
        if system.build_file(manifest.parent) is None and path is not None:
            file = Starlark(path, path.read_bytes())
            name = _resolved(manifest).relative_to(directory).as_posix()
            if any(_file_of(call, "") == name for call in file.calls()):
                return directory
    return manifest.parent.resolve()


def _file_of(call: ast.Call, package: str) -> str | None:
    """The manifest of a call, relative to the package; None if it is computed or elsewhere."""
    keyword = argument(call, "manifest")
    name = text(keyword.value) if keyword else None
    if name is None:
        return None
    return name.removeprefix(f"//{package}:").removeprefix(":")


class _Package:
    """The file of one package while it is updated."""

    def __init__(self, path: Path, system: System, root: Path) -> None:
        self.path, self.system, self.root = path, system, root
        self.before = path.read_bytes() if path.is_file() else None
        self.file = Starlark(path, self.before or b"")
        self.package = path.parent.relative_to(root).as_posix().removeprefix(".")
        self.notes: list[str] = []
        self.disagrees = False
        self.unread = False

    def result(self) -> Update:
        return Update(self.path, self.before, self.file.text.encode(), self.notes, self.disagrees, self.unread)

    def _rules(self) -> dict[str, str]:
        """The rules of programs, by their names in the file."""
        loaded = [each for _, _, symbols in self.file.loads() for each in symbols.items()]
        return {name: rule for name, rule in loaded if rule in _PROGRAMS}

    def _note(self, node: ast.expr | ast.keyword, message: str) -> None:
        note = f"{self.path}:{self.file.line(node)}: {message}"
        if note not in self.notes:
            self.notes.append(note)

    def _disagree(self, node: ast.expr | ast.keyword, message: str) -> None:
        """Notes that a target does not agree with its manifest, in a way that only the user can fix."""
        self._note(node, message)
        self.disagrees = True

    def _cannot_read(self, node: ast.expr | ast.keyword, what: str, why: str) -> None:
        """Notes that a part of a target is left alone, since only the build system knows its value."""
        self._note(node, f"cannot read {what}: {why}")
        self.unread = True

    def take(self, manifest: Path) -> None:
        """Updates the targets of a manifest, or adds one."""
        name = _resolved(manifest).relative_to(self.path.parent).as_posix()
        found = [index for index, call in enumerate(self.file.calls()) if _file_of(call, self.package) == name]
        for index in found:
            self._update(index, manifest)
        if found:
            self._note_variants_without_target(found, manifest)
            return
        computed = [call for call in self.file.calls() if _file_of(call, self.package) is None]
        if computed:
            self._cannot_read(
                computed[0],
                "`manifest`",
                "it is computed; manifests of this package that have no other target get none",
            )
        else:
            self._add(manifest, name)

    # --- an existing target

    def _note_variants_without_target(self, found: list[int], manifest: Path) -> None:
        """Notes the variants of a manifest that no target builds. A target with a computed variant may build any."""
        built = set[str]()
        for index in found:
            variant, several = (argument(self._call(index), name) for name in ("variant", "variants"))
            names = [text(variant.value)] if variant else []
            named = entries(several.value) if several else {}
            if None in names or named is None or self._rules().get(called(self._call(index)) or "") is None:
                return
            built |= {name for name in names if name} | named.keys()
        missing = [name for name in names_of_variants(manifest) if name not in built]
        if missing:
            self._note(self._call(found[0]), f"no target builds the variants {', '.join(missing)} of {manifest.name}")

    def _call(self, index: int) -> ast.Call:
        return self.file.calls()[index]

    def _update(self, index: int, manifest: Path) -> None:
        rule = self._rules().get(called(self._call(index)) or "")
        if rule is None:
            name = called(self._call(index)) or "the call"
            self._note(self._call(index), f"`{name}` is not a rule of rules_executorch; its arguments are left alone")
            return
        known = self._known(index)
        if known is None:
            return
        variant, settings = known
        if variant and variant not in names_of_variants(manifest):
            self._disagree(self._call(index), f"the manifest has no variant `{variant}`")
            return
        base = wanted_of.load(manifest, variant or None, settings)
        if rule == "executorch_checkpoints":
            base = self._without_checkpoint(index, base)
        self._set_name(index, base, variant)
        self._set_lists(index, base)
        self._set_files(index, base, manifest)
        if rule == "executorch_programs":
            self._set_variants(index, base, manifest, settings)

    def _known(self, index: int) -> tuple[str, dict[str, str]] | None:
        """The variant and the parameters of a target; None if they are computed."""
        call = self._call(index)
        variant, parameters = argument(call, "variant"), argument(call, "parameters")
        given = entries(parameters.value) if parameters else {}
        values = None if given is None else {key: text(value) for key, value in given.items()}
        for keyword, unknown in (
            (variant, variant is not None and text(variant.value) is None),
            (parameters, values is None or None in values.values()),
        ):
            if keyword and unknown:
                self._cannot_read(keyword, f"`{keyword.arg}`", "it is computed; the target is left alone")
                return None
        settings = {key: value for key, value in (values or {}).items() if value is not None}
        return (text(variant.value) or "" if variant else ""), settings

    def _without_checkpoint(self, index: int, base: Wanted) -> Wanted:
        """The files that the target lists besides its checkpoints."""
        keyword = argument(self._call(index), "checkpoint_as")
        name = text(keyword.value) if keyword else None
        if keyword and name is not None and not any(_is_in(each, name) for each in base.files["weights"]):
            self._disagree(keyword, f"the manifest does not name the weights `{name}`")
        others = [each for each in base.files["weights"] if name is not None and not _is_in(each, name)]
        return replace(base, files={**base.files, "weights": others})

    def _set_name(self, index: int, base: Wanted, variant: str) -> None:
        """Adds the manifest's name to a target that has another name."""
        call = self._call(index)
        keyword, other = argument(call, "name"), argument(call, "manifest_name")
        name = text(keyword.value) if keyword else None
        own = base.name.removesuffix(f".{variant}") if variant else base.name
        if other is None:
            if name is not None and name not in (own, base.name):
                self._set(index, "manifest_name", own)
        elif text(other.value) not in (None, own):
            self.file.replace(self.file.start(other.value), self.file.end(other.value), written(own))

    def _set_lists(self, index: int, base: Wanted) -> None:
        for attribute in (*_REQUIRED, *_OPTIONAL):
            keyword = argument(self._call(index), attribute)
            if keyword is None:
                if base.lists[attribute] and attribute in _REQUIRED:
                    self._set(index, attribute, base.lists[attribute])
            elif attribute in _MAY_BE_EMPTY or texts(keyword.value) != []:
                values = _values(base, attribute, texts(keyword.value), self._has_backends(index))
                self._change(keyword, partial(self._argument, index, attribute), values)

    def _has_backends(self, index: int) -> bool:
        return argument(self._call(index), "backends") is not None

    def _set_files(self, index: int, base: Wanted, manifest: Path) -> None:
        """Lists the files that the manifest names. Removes other files of this package where a build refuses them."""
        elsewhere: set[str] = set()
        for attribute in INPUTS:
            call = self._call(index)
            keyword = argument(call, attribute)
            has = texts(keyword.value) if keyword else []
            labels = [self._label(name, manifest) for name in base.files[attribute]]
            if has is None and keyword is not None:
                self._cannot_read(keyword, f"`{attribute}`", _COMPUTED)
            if (
                has is None
                or argument(call, f"{attribute}_as")
                or any((manifest.parent / name).is_dir() for name in base.files[attribute])
            ):
                continue
            missing = [
                each for each in labels if _plain(each) not in map(_plain, has) and _plain(each) not in elsewhere
            ]
            targets = [each for each in has if self._is_label(each) and each not in labels]
            if keyword is not None and targets:
                if missing:
                    why = f"only {self.system.name} knows the files of `{targets[0]}`"
                    self._cannot_read(keyword, f"`{attribute}`", f"{why}; the manifest names {', '.join(missing)}")
                continue
            keep = [each for each in has if attribute == "data" or _plain(each) in map(_plain, labels)]
            elsewhere |= set(map(_plain, has))
            if keyword is None and missing:
                self._set(index, attribute, sorted(missing))
            elif keyword is not None and (missing or keep != has):
                self._change(keyword, partial(self._argument, index, attribute), [*keep, *missing])

    def _set_variants(self, index: int, base: Wanted, manifest: Path, settings: Mapping[str, str]) -> None:
        keyword = argument(self._call(index), "variants")
        if keyword is None or entries(keyword.value) is None:
            self._cannot_read(keyword or self._call(index), "`variants`", _COMPUTED)
            return
        known = names_of_variants(manifest)
        for variant, node in (entries(keyword.value) or {}).items():
            if variant not in known:
                self._disagree(node, f"the manifest has no variant `{variant}`")
            elif entries(node) is None:
                self._cannot_read(node, f"the attributes of `{variant}`", "they are computed; they are left alone")
            else:
                self._set_variant(index, variant, base, wanted_of.load(manifest, variant, settings))

    def _set_variant(self, index: int, variant: str, base: Wanted, own: Wanted) -> None:
        """Writes those attributes of a variant's target that differ from those of the program without a variant."""

        def attributes() -> ast.expr:
            found = entries(self._argument(index, "variants"))
            assert found is not None
            return found[variant]

        def own_value(attribute: str) -> ast.expr:
            return (entries(attributes()) or {})[attribute]

        for attribute in (*_REQUIRED, *_OPTIONAL):
            given, keyword = entries(attributes()) or {}, argument(self._call(index), attribute)
            has_backends = "backends" in given or self._has_backends(index)
            if attribute in given:
                if attribute in _MAY_BE_EMPTY or texts(given[attribute]) != []:
                    values = _values(own, attribute, texts(given[attribute]), has_backends)
                    self._change(given[attribute], partial(own_value, attribute), values)
            elif attribute in _REQUIRED or keyword is not None:
                inherited = texts(keyword.value) if keyword is not None and attribute == "plugins" else None
                values = _values(own, attribute, inherited, has_backends)
                if values != (base.lists[attribute] if inherited is None else inherited):
                    self._add_entry(attributes(), attribute, values)
        for attribute in INPUTS:
            given = entries(attributes()) or {}
            if attribute not in given and own.files[attribute] != base.files[attribute]:
                self._disagree(
                    attributes(),
                    f"the variant `{variant}` has other `{attribute}`: {', '.join(own.files[attribute]) or 'none'}",
                )
        if own.export != base.export and "export" not in (entries(attributes()) or {}):
            self._add_entry(attributes(), "export", None)

    def _add_entry(self, node: ast.expr, key: str, value: object) -> None:
        entry = f"{written(key)}: {written(value)}"
        there = items(node)
        if there and _in_one_line(self.file, node):
            known = {name: self.file.source(item) for name, item in (entries(node) or {}).items()}
            each = [entry if name == key else f"{written(name)}: {known[name]}" for name in sorted([*known, key])]
            self._rewrite(node, lines(each, "{", "}"))
            return
        after = sum((text(each) or "") < key for each in there)
        self.file.insert(there, after, node, entry)

    # --- edits

    def _argument(self, index: int, name: str) -> ast.expr:
        keyword = argument(self._call(index), name)
        assert keyword is not None
        return keyword.value

    def _change(self, place: ast.expr | ast.keyword, node: Callable[[], ast.expr], values: list[str]) -> None:
        """Makes a list hold these values. `node` finds it again after each edit."""
        has = texts(node())
        if has is None:
            what = f"`{place.arg}`" if isinstance(place, ast.keyword) else "the list"
            self._cannot_read(place, what, _COMPUTED)
            return
        new = [value for value in values if value not in has]
        if len(has) < 2 and new and len(has) + len(new) > 1 and _in_one_line(self.file, node()):
            self._rewrite(node(), written(sorted([*(each for each in has if each in values), *new])))
            return
        for value in [each for each in has if each not in values]:
            self.file.remove(items(node()), (texts(node()) or []).index(value), node())
        ordered = has == sorted(has)
        for value in new:
            there = texts(node()) or []
            after = sum(each < value for each in there) if ordered else len(there)
            self.file.insert(items(node()), after, node(), written(value))

    def _rewrite(self, node: ast.expr, content: str) -> None:
        """Writes a list or a dictionary without comments anew."""
        indent = self.file.indent(self.file.start(node))
        self.file.replace(self.file.start(node), self.file.end(node), content.replace("\n", f"\n{indent}"))

    def _set(self, index: int, attribute: str, value: object) -> None:
        """Adds an argument to a call, unless a `**` may contain it."""
        call = self._call(index)
        if any(each.arg is None for each in call.keywords):
            self._note(
                call, f"the target has no `{attribute}` itself; `**` may have it: {' '.join(written(value).split())}"
            )
            return
        keywords = [each for each in call.keywords if each.arg is not None]
        rank = (_LAST.get(attribute, 2), attribute)
        after = sum((_LAST.get(each.arg or "", 2), each.arg or "") < rank for each in keywords)
        self.file.insert(keywords, max(after, 1), call, f"{attribute} = {written(value)}")

    def _label(self, name: str, manifest: Path) -> str:
        """The label in the target for a file that the manifest names."""
        beside = manifest.parent.resolve() / name
        path = beside if beside.exists() or not (self.root / name).exists() else self.root / name
        for directory in path.parents:
            if directory == self.path.parent:
                return path.relative_to(directory).as_posix()
            if directory == self.root or self.system.build_file(directory):
                package = directory.relative_to(self.root).as_posix().removeprefix(".")
                return f"//{package}:{path.relative_to(directory).as_posix()}"
        return name

    def _is_label(self, name: str) -> bool:
        """Whether an item in a list of files may be a rule's target, or a file of another package."""
        if name.startswith(("//", "@")) or not PurePosixPath(name).suffix:
            return True
        is_file = not name.startswith(":") or (self.path.parent / _plain(name)).is_file()
        return not is_file or PurePosixPath(_plain(name)).name in self.file.target_names()

    # --- a new target

    def _add(self, manifest: Path, name: str) -> None:
        """Adds a target for a manifest that has none."""
        base = wanted_of.load(manifest, None, {})
        sources, elsewhere = wanted_of.sources(base, manifest)
        prefix = f"{manifest.parent.resolve().relative_to(self.path.parent).as_posix()}/".removeprefix("./")
        attributes: dict[str, object] = {
            "srcs": [prefix + each for each in sources],
            **{key: values for key, values in base.lists.items() if key == "plugins" or (key != "backends" and values)},
            **{key: [self._label(each, manifest) for each in files] for key, files in base.files.items()},
            "manifest": name,
        }
        other = {each: wanted_of.load(manifest, each, {}) for each in names_of_variants(manifest)}
        if other:
            attributes["variants"] = {each: self._differing(base, own, manifest) for each, own in sorted(other.items())}
        rule = "executorch_programs" if other else "executorch_program"
        ordered = {key: attributes[key] for key in sorted(attributes, key=lambda key: (_LAST.get(key, 2), key))}
        local = next((local for local, known in self._rules().items() if known == rule), None)
        if base.name in self.file.target_names():
            self.notes.append(
                f"{self.path}: `{base.name}` of {manifest.name} has no target: another target has the name"
            )
            self.disagrees = True
            return
        self._append(rule_call(local or rule, {"name": base.name, **ordered}))
        if local is None:
            self._load(rule)
        if elsewhere:
            where = "outside of the manifest's directory"
            self.notes.append(f"{self.path}: `{base.name}` imports {', '.join(elsewhere)}, {where}: add `deps`")

    def _differing(self, base: Wanted, own: Wanted, manifest: Path) -> dict[str, object]:
        """The attributes of a variant's target that differ."""
        found: dict[str, object] = {}
        for key in (*_REQUIRED, "methods", "plugins"):
            if own.lists[key] != base.lists[key]:
                found[key] = own.lists[key]
        for key in INPUTS:
            if own.files[key] != base.files[key]:
                found[key] = [self._label(each, manifest) for each in own.files[key]]
        if own.export != base.export:
            found["export"] = None
        return dict(sorted(found.items()))

    def _append(self, target: str) -> None:
        content = self.file.text
        gap = "" if not content.strip() else "\n" if content.endswith(("\n", "\r")) else "\n\n"
        self.file.replace(len(content), len(content), gap + target)

    def _load(self, rule: str) -> None:
        """Loads a rule."""
        for call, label, symbols in self.file.loads():
            if label == self.system.label or _PROGRAMS & set(symbols.values()):
                there = call.args
                after = 1 + sum((text(each) or "") < rule for each in there[1:])
                self.file.insert(there, after, call, written(rule))
                return
        loads = [call for call, _, _ in self.file.loads()]
        line = f"load({written(self.system.label)}, {written(rule)})\n"
        if loads:
            place = self.file.line_end(self.file.end(loads[-1]))
            self.file.replace(place, place, "\n" + line.rstrip("\n"))
            return
        place = self._top()
        self.file.replace(place, place, f"{line}\n")

    def _top(self) -> int:
        """Where the first load goes: after a comment at the head of the file, but before the comment of a statement."""
        body = self.file.tree.body
        if body and isinstance(body[0], ast.Expr) and text(body[0].value) is not None and len(body) > 1:
            body = body[1:]  # the documentation of the file
        place = self.file.line_start(self.file.start(body[0]))
        before = self.file.text[:place]
        if before.rstrip(" \t").endswith(("\n\n", "\r\n\r\n")) or not before.strip("\ufeff"):
            return place
        above = before.splitlines(keepends=True)
        while above and above[-1].lstrip().startswith("#"):
            place -= len(above.pop())
        return place or self.file.begin


def names_of_variants(manifest: Path) -> list[str]:
    """The names of a manifest's variants."""
    data = yaml_document.load(manifest, None).data
    return variants.names(data) if isinstance(data, dict) else []


def _values(wanted: Wanted, attribute: str, has: list[str] | None, has_backends: bool) -> list[str]:
    """What a target says that has these values now. `*` stands for all plug-ins, so it stays."""
    if attribute != "plugins" or has is None:
        return wanted.lists[attribute]
    return has if has == [plugins.ANY] else plugins_to_list(wanted.plan, wanted.needed, has, has_backends)


_PROGRAMS = {"executorch_checkpoints", "executorch_program", "executorch_programs"}


def _resolved(manifest: Path) -> Path:
    """The path of a manifest with the links of its directory resolved. The manifest itself may stay a link."""
    return manifest.parent.resolve() / manifest.name


def _is_in(file: str, place: str) -> bool:
    """Whether a file is this one, or in this folder."""
    return PurePosixPath(place) in (PurePosixPath(file), *PurePosixPath(file).parents)


def _plain(label: str) -> str:
    return label.removeprefix(":")


def _in_one_line(file: Starlark, node: ast.expr) -> bool:
    """Whether a list or a dictionary stands in one line, without comments."""
    return "\n" not in file.source(node)
