"""Weights without content: lowering runs on them, so that its results cannot depend on the content of weights.

An unbound tensor has a dtype and a shape, and no memory. It records how it was computed from weights, as a recipe. If
ExecuTorch asks for its bytes to write them into a program, it gets the recipe, in an object with the length of the
bytes. So blobs, their digests and the keys made from digests stand for recipes until `binding` computes content.

Everything else that needs content fails, and is noted. Then the method is lowered with the content of these weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from executorch.backends.xnnpack.operators import node_visitor
from executorch.exir.emit import _emitter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils import dlpack

from etbuild.backends.backend import WeightFunction
from etbuild.model.tensor_bytes import Promised
from etbuild.model.tensor_facts import TensorFacts
from etbuild.patching import replaced
from etplugins.templates import recipes
from etplugins.templates.recipes import MARK, Form, NoRecipe, Recipe

_SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
_READERS = (
    *("data_ptr", "const_data_ptr", "numpy", "tolist", "item", "storage", "_typed_storage"),
    *("__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"),
    *("__dlpack__", "__reduce_ex__", "__iter__"),
)
"""Functions of a tensor that read its memory without PyTorch's operators, or whose names describe the request best."""
_WRITERS_OF_TEXT = ("__repr__", "__str__", "__format__")
"""Functions of a tensor that show its content to people. They are noted, but may run, because errors need them."""
_EXPORTERS = ("_to_dlpack", "_to_dlpack_versioned")
"""Functions of `torch._C` that read memory without PyTorch's operators. A tensor cannot refuse them."""
_IDENTITY = ("_cdata", "_expired", "_fix_weakref", "_free_weak_ref", "_weak_ref")
"""The name by which PyTorch distinguishes storages."""
_READERS_OF_BYTES = (
    *("__iter__", "__contains__", "__add__", "__mul__"),
    *("count", "decode", "find", "hex", "index", "startswith"),
)


class ReadsWeights(BaseException):
    """Something read the content of weights. The message gives users the reason. Handlers of `Exception` do not catch
    it, because they could continue without the content."""


class Watch:
    """Facts about a lowering without the content of weights.

    Attributes:
        reads: For users: what read which weight. Empty if nothing did.
        recipes: The recipes that stand for content, by their digests.
    """

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.checks: list[Recipe] = []
        self.recipes: dict[str, UnboundBytes] = {}

    def take(self) -> tuple[list[str], list[Recipe]]:
        """The notes of a fork, for `add`."""
        return self.reads, self.checks

    def add(self, noted: tuple[list[str], list[Recipe]]) -> None:
        """Adds the notes of a fork of this process. Its results have brought the recipes."""
        self.reads += [each for each in noted[0] if each not in self.reads]
        self.checks += [each for each in noted[1] if each not in self.checks]


_watching: list[Watch] = []


@contextlib.contextmanager
def watched(functions: Mapping[str, WeightFunction]) -> Iterator[Watch]:
    """Within this context, ExecuTorch takes the recipes of unbound tensors in place of their bytes.

    Notes each read of weights, even if the code that read continues.

    Args:
        functions: The functions of backends that wait for content.
    """
    watch, addresses = Watch(), _Addresses()
    _watching.append(watch)
    try:
        with contextlib.ExitStack() as waiting:
            for module in (node_visitor, _emitter):
                waiting.enter_context(replaced(module, "ctypes", addresses))
            for name in _EXPORTERS:
                waiting.enter_context(replaced(torch._C, name, _guarded(getattr(torch._C, name))))
            waiting.enter_context(replaced(dlpack, "to_dlpack", torch._C._to_dlpack))
            waiting.enter_context(replaced(torch.Tensor, "data", property(_DATA.__get__, _set_data)))
            for name, each in functions.items():
                waiting.enter_context(replaced(each.owner, each.attribute, _waiting(name, each, watch)))
            yield watch
    finally:
        _watching.remove(watch)


def _guarded(function: Any) -> Any:
    """A function of PyTorch that refuses unbound tensors, and takes all others."""

    def call(tensor: torch.Tensor, *more: Any, **named: Any) -> Any:
        if isinstance(tensor, UnboundTensor):
            _refuse(tensor.recipe, f"`{function.__name__}` reads the content")
        return function(tensor, *more, **named)

    return call


_DATA = torch._C.TensorBase.data


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a tensor other memory. Refuses that of an unbound tensor, because operators would read it."""
    if isinstance(value, UnboundTensor):
        _refuse(value.recipe, "`data` of another tensor takes the content")
    _DATA.__set__(tensor, value)


def _waiting(name: str, function: WeightFunction, watch: Watch) -> Any:
    """A function of a backend that notes its calls with unbound tensors, and runs all other calls."""
    original = vars(function.owner)[function.attribute]  # with its `staticmethod`
    run = getattr(function.owner, function.attribute)

    made: dict[str, torch.Tensor] = {}  # the forms of results, by the forms of tensors and the other arguments

    def call(*positional: Any, **named: Any) -> Any:
        bound = signature.bind(*positional, **named)
        bound.apply_defaults()
        arguments = bound.args
        if not any(isinstance(each, UnboundTensor) for each in arguments):
            return run(*arguments)
        recipe = recipes.function(name, arguments, _recipe_of)
        if function.checks:
            watch.add(([], [recipe]))
            return None
        key = repr([recipes.form(each) if isinstance(each, torch.Tensor) else each for each in arguments])
        if key not in made:
            zeros = [
                torch.zeros_like(each.form, device="cpu") if isinstance(each, UnboundTensor) else each
                for each in arguments
            ]
            made[key] = run(*zeros).to("meta")
        return UnboundTensor(made[key], recipe)

    signature = inspect.signature(run)
    return staticmethod(call) if isinstance(original, staticmethod) else call


def _refuse(recipe: Recipe, reason: str) -> NoReturn:
    """Notes that something reads an unbound tensor, and stops it."""
    raise ReadsWeights(_note(recipe, reason))


def _note(recipe: Recipe, reason: str) -> str:
    """Notes that something reads an unbound tensor. Returns the note."""
    names = sorted(set(recipes.weights_of(recipe)))
    said = f"{reason} of `{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    if (place := _reader_of_weights()) is not None:
        said += f" in `{place}`"
    for watch in _watching:
        watch.reads.append(said)
    return said


def _reader_of_weights() -> str | None:
    """The function that reads a weight, as `MODULE:NAME`: the innermost one outside of PyTorch and the driver."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("torch", "etbuild", "etplugins", "contextlib", "ctypes"):
            return f"{module}:{frame.f_code.co_qualname}"
        if module == "etplugins.templates.one_by_one":
            return None
        frame = frame.f_back
    return None


class UnboundTensor(Promised):
    """A weight without content, or a tensor computed from such weights.

    Attributes:
        form: A tensor of the same form, on the device `meta`.
        recipe: How it was computed.
    """

    form: torch.Tensor
    recipe: Recipe

    @staticmethod
    def __new__(cls: type[UnboundTensor], form: torch.Tensor, recipe: Recipe) -> UnboundTensor:
        """Makes a tensor. The arguments are described above."""
        self: UnboundTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            form.size(),
            strides=form.stride(),
            storage_offset=form.storage_offset(),
            dtype=form.dtype,
            layout=form.layout,
            device="cpu",
        )
        self.form, self.recipe = form, recipe
        torch._C._set_throw_on_mutable_data_ptr(self)
        return self

    def __repr__(self, *_: Any, **__: Any) -> str:
        _note(self.recipe, "a text has the content")
        return f"UnboundTensor({self.dtype}, {list(self.shape)})"

    __str__ = __format__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> UnboundTensor:
        return self  # nothing can change it

    def promise(self) -> UnboundBytes:
        """The recipe, as what stands for its bytes."""
        if self.form.nbytes != self.form.untyped_storage().nbytes():
            _refuse(self.recipe, "a program gets a part")
        return UnboundBytes(self.recipe, recipes.form(self.form), self.form.nbytes)

    def untyped_storage(self) -> Any:
        """Its memory. Only its size is known."""
        return _Storage(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses functions that read memory or replace its content without PyTorch's operators."""
        del types
        name = getattr(function, "__name__", "")
        if name in _READERS or function == _DATA.__set__:
            _refuse(_all_of(args), f"`{function}` takes the content")
        if name in ("untyped_storage", *_WRITERS_OF_TEXT):  # these are called as functions of the class
            return getattr(args[0], name)(*args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records a call of an operator."""
        del types
        options = kwargs or {}
        leaves, spec = pytree.tree_flatten((args, options))
        unbound = next(leaf for leaf in leaves if isinstance(leaf, UnboundTensor))
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        mode = mode or next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)
        if mode is not None:  # a pass traces: even with the content of weights, its results have no content
            forms, named = pytree.tree_unflatten([_faked(leaf, mode) for leaf in leaves], spec)
            with mode:
                return operator(*forms, **named)
        if operator in _SAME:
            return UnboundTensor(unbound.form, unbound.recipe)
        try:
            recipe = recipes.call(operator, args, options, _recipe_of)
            forms, named = pytree.tree_unflatten([_form(leaf) for leaf in leaves], spec)
            made = operator(*forms, **named)
        except ReadsWeights:
            raise
        except Exception as error:  # noqa: BLE001 - a kernel for forms may raise anything
            _refuse(_all_of(leaves), _why(operator, error))
        if isinstance(made, torch.Tensor):
            return cls(made, recipe)
        if isinstance(made, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in made):
            return type(made)(cls(each, {**recipe, "result": index}) for index, each in enumerate(made))
        return _refuse(recipe, f"`{operator}` reads the content")


def _all_of(values: Iterable[Any]) -> Recipe:
    return {"of": [each.recipe for each in values if isinstance(each, UnboundTensor)]}


def _why(operator: Any, error: Exception) -> str:
    return str(error) if isinstance(error, NoRecipe) else f"`{operator}` reads the content"


def _recipe_of(tensor: torch.Tensor) -> Recipe:
    if isinstance(tensor, UnboundTensor):
        return tensor.recipe
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        raise NoRecipe(f"a {type(tensor).__name__} meets the content")
    return recipes.constant(tensor)


def _faked(value: Any, mode: FakeTensorMode) -> Any:
    return FakeTensor(mode, value.form, torch.device("cpu")) if isinstance(value, UnboundTensor) else value


def _form(value: Any) -> Any:
    if isinstance(value, UnboundTensor):
        return value.form
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _reader(name: str) -> Any:
    def read(self: UnboundTensor | UnboundBytes, *_: Any, **__: Any) -> NoReturn:
        _refuse(self.recipe, f"`{name}` reads the content")

    return read


for _name in _READERS:
    setattr(UnboundTensor, _name, _reader(_name))


def weight(facts: TensorFacts) -> torch.Tensor:
    """A weight without content. Its elements are row by row."""
    form = torch.empty(facts.shape, dtype=getattr(torch, facts.dtype), device="meta")
    made = UnboundTensor(form, recipes.weight(facts.name))
    return torch.nn.Parameter(made, requires_grad=False) if facts.parameter else made


class UnboundBytes(bytes):
    """A recipe, with the length of the content that it stands for. Its digest is that of the recipe with `MARK`.

    Attributes:
        form: The form of the tensor that the recipe makes.
        size: The length of the content in bytes.
    """

    form: Form
    size: int

    def __new__(cls, recipe: Recipe | bytes, form: Form, size: int) -> UnboundBytes:
        """Makes an object from a recipe, or from its text with `MARK`. The other arguments are described above."""
        text = recipe if isinstance(recipe, bytes) else MARK + recipes.text(recipe).encode()
        self = super().__new__(cls, text)
        self.form, self.size = form, size
        for watch in _watching:
            watch.recipes[hashlib.sha256(text).hexdigest()] = self
        return self

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        return UnboundBytes, (bytes(memoryview(self)), self.form, self.size)

    def __getitem__(self, key: Any) -> Any:
        if key == slice(None, 32):  # ExecuTorch's store compares digests if the beginnings are equal
            return super().__getitem__(key)
        _refuse(self.recipe, "something reads a part")

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        found: Recipe = json.loads(bytes(memoryview(self))[len(MARK) :])
        return found


for _name in _READERS_OF_BYTES:
    setattr(UnboundBytes, _name, _reader(_name))


class _Storage:
    """The memory of an unbound tensor. Its address can be read only where ExecuTorch writes bytes."""

    def __init__(self, tensor: UnboundTensor) -> None:
        self._tensor = tensor

    def _read(self, *_: Any) -> NoReturn:
        _refuse(self._tensor.recipe, "something reads the content")

    def __getattr__(self, name: str) -> Any:
        if name in _IDENTITY:
            with torch._C.DisableTorchFunctionSubclass():
                return getattr(torch.Tensor.untyped_storage(self._tensor), name)
        if name.startswith("__") and not hasattr(torch.UntypedStorage, name):  # no attribute of a storage
            raise AttributeError(name)
        return self._read()

    __getitem__ = __iter__ = __bytes__ = __reduce_ex__ = _read

    def __deepcopy__(self, memo: dict[int, Any]) -> _Storage:
        return self

    def nbytes(self) -> int:
        return int(self._tensor.form.untyped_storage().nbytes())

    size = __len__ = nbytes

    def data_ptr(self) -> _Address:
        return _Address(self._tensor)


class _Address:
    """The address of memory that does not exist. It is no number."""

    def __init__(self, tensor: UnboundTensor) -> None:
        self.tensor = tensor

    def _read(self, *_: Any) -> NoReturn:
        _refuse(self.tensor.recipe, "`data_ptr` reads the content")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = __int__ = __index__ = __float__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __mod__ = __and__ = __floordiv__ = __rshift__ = _read
    __str__ = __repr__ = __format__ = _read
    _as_parameter_ = property(_read)  # `ctypes` reads this attribute


class _Contents:
    """The content at such an address: its `bytes` are the recipe."""

    def __init__(self, tensor: UnboundTensor) -> None:
        self._tensor = tensor

    @property
    def contents(self) -> _Contents:
        return self

    def __bytes__(self) -> bytes:
        return self._tensor.promise()


class _Addresses:
    """Replaces `ctypes` in the code of ExecuTorch that reads the bytes of tensors to write them into a program."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)

    @staticmethod
    def cast(address: Any, kind: Any) -> Any:
        return _Contents(address.tensor) if isinstance(address, _Address) else ctypes.cast(address, kind)
