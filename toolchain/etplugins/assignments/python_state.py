"""Finds and undoes changes of Python objects that a model reaches: attributes, dictionaries, lists and globals.

A method that is traced assigns PyTorch's fake tensors. Without this module, the next method would read them.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_TRACED_TENSORS = (FakeTensor, FunctionalTensor)
_ATOMS = frozenset((str, int, float, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.Size, range))
_DICTIONARIES = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, deque)
# Objects of these packages are not visited, except modules: some hold whole graphs, and none has a model's state.
_FOREIGN = frozenset(("torch", "torchao", "executorch", "numpy", "sympy", "builtins", "threading", "_thread"))
_LRU_CACHE = type(functools.lru_cache(lambda: None))
# The dictionaries in which a module keeps its tensors and children. Names do not contain these dictionaries.
BUFFERS, PARAMETERS, CHILDREN = "_buffers", "_parameters", "_modules"
_MODULE_DICTIONARIES = (BUFFERS, PARAMETERS, CHILDREN)

_Content = dict[Any, Any]
_Part = tuple[Any, str]


@dataclass(frozen=True)
class TensorChange:
    """An assignment of a tensor.

    Attributes:
        name: The name in the form that a user writes, such as `tail.state` or `cache['h']`.
        before: The previous value; None if there was none.
        after: The tensor.
    """

    name: str
    before: Any
    after: torch.Tensor


@dataclass(frozen=True)
class _Holder:
    """An object whose content can be changed."""

    name: Callable[[Any], str]  # returns the name of a part by its key
    read: Callable[[], _Content]
    write: Callable[[_Content], None]
    before: _Content  # when the state was recorded
    kind: str = ""  # `BUFFERS`, `PARAMETERS` or `CHILDREN` of a module; "" for anything else
    of_module: bool = False  # whether all changes are undone, not only those of tensors

    def is_changed(self) -> bool:
        """Whether the content changed in a way that must be undone."""
        now = self.read()
        differing = [key for key in {**now, **self.before} if now.get(key, self) is not self.before.get(key, self)]
        if self.of_module:
            return bool(differing)
        # Other objects may record lasting facts about the process, such as that an operator is registered.
        return any(_has_tensors(content.get(key)) for key in differing for content in (now, self.before))


class PythonState:
    """The state of a module and of all objects that it reaches, to find and undo later changes.

    Attributes:
        tensors: All tensors of the state, except parameters and fake tensors.
    """

    def __init__(self, module: torch.nn.Module, sources: Iterable[types.ModuleType] = ()) -> None:
        """Records the state.

        Args:
            module: The module that is exported.
            sources: The Python modules of the user's code. Their globals and classes are recorded too.
        """
        sources_by_name = {source.__name__: source for source in sources}
        self._walk = _Walk(frozenset(sources_by_name))
        modules = [(child, name) for name, child in module.named_modules()]
        reached = self._walk.tensors([*modules, *((source, name) for name, source in sources_by_name.items())])
        excluded = (torch.nn.Parameter, *_TRACED_TENSORS)
        self.tensors = [tensor for tensor in reached if not isinstance(tensor, excluded)]

    def changes(self, kind: str = "") -> Iterator[TensorChange]:
        """The assignments of tensors since the state was recorded.

        Args:
            kind: `BUFFERS` or `PARAMETERS` of modules, including new modules; "" for tensors elsewhere.
        """
        for holder in self._walk.holders:
            if holder.kind == kind:
                yield from _changes(holder)
            elif kind and holder.kind == CHILDREN:
                for key, child in holder.read().items():
                    if child is not None and child is not holder.before.get(key):
                        yield from _new_tensors(child, kind, holder.name(key))

    def changed_atoms(self) -> Iterator[str]:
        """The names of changed attributes, elements and globals whose values are numbers, texts and the like."""
        for holder in self._walk.holders:
            if not holder.kind:
                for key, now in holder.read().items():
                    before = holder.before.get(key)
                    if type(now) in _ATOMS and type(before) in _ATOMS and now != before:
                        yield holder.name(key)

    def restore(self, *, tensors_of_modules: bool = True) -> None:
        """Undoes changes of modules, and assignments of tensors elsewhere.

        Args:
            tensors_of_modules: Whether to restore parameters, buffers and children of modules too.
        """
        for cache in self._walk.caches:
            if _has_tensors(cache, _TRACED_TENSORS):
                cache.cache_clear()
        for holder in self._walk.holders:
            if (tensors_of_modules or not holder.kind) and holder.is_changed():
                holder.write(holder.before)


def _changes(holder: _Holder) -> Iterator[TensorChange]:
    for key, part in holder.read().items():
        yield from _compare(holder.name(key), holder.before.get(key), part, set())


def _compare(name: str, before: Any, after: Any, seen: set[int]) -> Iterator[TensorChange]:
    """The tensors in a new value, also in lists, dictionaries and objects, as changes with their own names.

    Skips a part that is the same object as before, because it is a holder itself. `seen` has the ids of the visited
    values; new ones are added.
    """
    if after is before or type(after) in _ATOMS or id(after) in seen:
        return
    seen.add(id(after))
    if _is(after, torch.Tensor):
        yield TensorChange(name, before, after)
    elif _is(after, (list, tuple, deque)):
        old = list(before) if _is(before, (list, tuple, deque)) else []
        for index, part in enumerate(after):
            yield from _compare(f"{name}[{index}]", old[index] if index < len(old) else None, part, seen)
    elif _is(after, dict):
        old_parts = before if _is(before, dict) else {}
        for key, part in list(dict.items(after)):
            yield from _compare(f"{name}[{key!r}]", dict.get(old_parts, key), part, seen)
    elif not _is_foreign(type(after)):
        old_parts = _attributes(before) if type(before) is type(after) else {}
        for key, part in list(_attributes(after).items()):
            yield from _compare(f"{name}.{key}", old_parts.get(key), part, seen)


def _new_tensors(module: torch.nn.Module, kind: str, name: str) -> Iterator[TensorChange]:
    """The parameters or buffers of a new module, as changes."""
    for module_name, child in module.named_modules(prefix=name):
        for key, tensor in vars(child)[kind].items():
            if tensor is not None:
                yield TensorChange(f"{module_name}.{key}", None, tensor)


def _has_tensors(value: Any, kinds: type | tuple[type, ...] = torch.Tensor) -> bool:
    """Whether a value is a tensor of one of these classes, or reaches one."""
    walk = _Walk(frozenset(), in_caches=True)
    return any(_is(tensor, kinds) for tensor in walk.tensors([(value, "")]))


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Like `isinstance`, but runs no code of the value: a proxy would give the answer of another object."""
    return issubclass(type(value), kinds)


def _is_foreign(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _FOREIGN


def _attributes(value: Any) -> _Content:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if _is(attributes, dict) else {}


class _Walk:
    """Visits each reachable object once. Records objects with changeable content, and functions with
    `functools.lru_cache`."""

    def __init__(self, sources: frozenset[str], *, in_caches: bool = False) -> None:
        """`sources` has the names of the Python modules of the user's code; `in_caches` says whether the entries of
        caches are visited."""
        self.holders: list[_Holder] = []
        self.caches: list[Any] = []
        self._sources = sources
        self._in_caches = in_caches
        self._seen: dict[int, Any] = {}  # keeps the objects, so that no new object gets the same id

    def tensors(self, values: list[_Part]) -> Iterator[torch.Tensor]:
        """Visits values and everything that they reach, and yields the tensors. Nearer objects come first, so that
        names are short."""
        waiting = deque(values)
        while waiting:
            value, name = waiting.popleft()
            if type(value) in _ATOMS or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if _is(value, torch.Tensor):
                yield value
            else:
                waiting.extend(self._parts(value, name))

    def _parts(self, value: Any, name: str) -> Iterator[_Part]:
        if _is(value, dict):
            yield from self._dictionary(value, lambda key: f"{name}[{key!r}]")
        elif _is(value, (list, deque, set)):
            yield from self._collection(value, name)
        elif _is(value, (tuple, frozenset)):
            yield from ((part, f"{name}[{index}]") for index, part in enumerate(value))
        elif _is(value, types.ModuleType):
            if value.__name__ in self._sources:
                yield from self._dictionary(vars(value), lambda key: f"{name}.{key}")
        elif _is(value, type):
            yield from self._class(value)
        elif _is(value, _LRU_CACHE):
            self.caches.append(value)
            # Its entries are only searched for tensors, because a cache is always cleared as a whole.
            yield from ((part, name) for part in (gc.get_referents(value) if self._in_caches else (value.__wrapped__,)))
        elif _is(value, types.CellType):
            yield from self._cell(value, name)
        elif _is(value, torch.nn.Module):
            yield from self._module(value, f"{name}." if name else "")
        else:
            yield from self._object(value, name)

    def _dictionary(
        self, value: _Content, name_of: Callable[[Any], str], kind: str = "", *, of_module: bool = False
    ) -> Iterator[_Part]:
        if type(value) in _DICTIONARIES:

            def write(content: _Content) -> None:
                value.clear()
                value.update(content)

            self.holders.append(_Holder(name_of, lambda: dict(value), write, dict(value), kind, of_module))
        yield from [(part, name_of(key)) for key, part in dict.items(value) if type(part) not in _ATOMS]

    def _collection(self, value: Any, name: str) -> Iterator[_Part]:
        if type(value) in _SEQUENCES:

            def write(content: _Content) -> None:
                value.clear()
                value.extend(content.values())

            before = dict(enumerate(value))
            self.holders.append(_Holder(lambda key: f"{name}[{key}]", lambda: dict(enumerate(value)), write, before))
        yield from [(part, f"{name}[{index}]") for index, part in enumerate(value) if type(part) not in _ATOMS]

    def _cell(self, cell: types.CellType, name: str) -> Iterator[_Part]:
        """Visits a variable that a function shares with its inner functions."""

        def read() -> _Content:
            with suppress(ValueError):  # the cell is empty
                return {name: cell.cell_contents}
            return {}

        def write(content: _Content) -> None:
            if content:
                cell.cell_contents = content[name]
            elif read():
                del cell.cell_contents

        self.holders.append(_Holder(str, read, write, read()))
        yield from ((part, name) for part in read().values())

    def _class(self, value: type) -> Iterator[_Part]:
        if value.__module__ not in self._sources:
            return

        def write(content: _Content) -> None:
            now = dict(vars(value))
            for key in now.keys() - content.keys():
                delattr(value, key)
            for key, part in content.items():
                if now.get(key, content) is not part:
                    setattr(value, key, part)

        name, before = f"{value.__module__}.{value.__qualname__}", dict(vars(value))
        self.holders.append(_Holder(lambda key: f"{name}.{key}", lambda: dict(vars(value)), write, before))
        yield from ((part, f"{name}.{key}") for key, part in before.items() if type(part) not in _ATOMS)
        yield from ((base, "") for base in value.__bases__)

    def _module(self, module: torch.nn.Module, prefix: str) -> Iterator[_Part]:
        def name_of(key: str) -> str:
            return f"{prefix}{key}"

        attributes = vars(module)
        for kind in _MODULE_DICTIONARIES:
            self._seen[id(attributes[kind])] = attributes[kind]
            yield from self._dictionary(attributes[kind], name_of, kind, of_module=True)
        non_persistent = attributes["_non_persistent_buffers_set"]

        def write(content: _Content) -> None:
            non_persistent.clear()
            non_persistent.update(content)

        self.holders.append(
            _Holder(name_of, lambda: dict.fromkeys(non_persistent), write, dict.fromkeys(non_persistent), BUFFERS, True)
        )
        yield from self._dictionary(attributes, name_of, of_module=True)
        yield from ((base, "") for base in type(module).__mro__)

    def _object(self, value: Any, name: str) -> Iterator[_Part]:
        """The parts of an object: attributes, slots, classes, and the values that a function or the like holds."""
        prefix = f"{name}." if name else ""
        yield from _values_of_callable(value, prefix)
        kind = type(value)
        if _is_foreign(kind) and not _is(value, types.FunctionType):
            return
        yield from self._dictionary(_attributes(value), lambda key: f"{prefix}{key}")
        yield from self._slots(value, prefix)
        yield from ((base, "") for base in kind.__mro__)

    def _slots(self, value: Any, prefix: str) -> Iterator[_Part]:
        slots = {
            key: slot
            for base in type(value).__mro__
            if not _is_foreign(base)
            for key, slot in vars(base).items()
            if _is(slot, types.MemberDescriptorType)
        }
        if not slots:
            return

        def read() -> _Content:
            values = {}
            for key, slot in slots.items():
                with suppress(AttributeError):  # the slot is empty
                    values[key] = slot.__get__(value)
            return values

        def write(content: _Content) -> None:
            for key in read().keys() - content.keys():
                slots[key].__delete__(value)
            for key, part in content.items():
                slots[key].__set__(value, part)

        self.holders.append(_Holder(lambda key: f"{prefix}{key}", read, write, read()))
        yield from ((part, f"{prefix}{key}") for key, part in read().items())


def _values_of_callable(value: Any, prefix: str) -> Iterator[_Part]:
    """The values that a function, partial, method or property holds."""
    if _is(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((cell, f"{prefix}{name}") for name, cell in cells)
        for part in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield part, f"{prefix}{value.__name__}"
    elif _is(value, functools.partial):
        yield from ((part, prefix.rstrip(".")) for part in (value.func, *value.args, *value.keywords.values()))
    elif _is(value, (types.MethodType, staticmethod, classmethod)):
        yield value.__func__, prefix.rstrip(".")
        yield getattr(value, "__self__", None), prefix.rstrip(".")
    elif _is(value, property):
        yield from ((part, prefix.rstrip(".")) for part in (value.fget, value.fset))
