"""Reads the content of a module's parameters and buffers from checkpoints, one tensor at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean, unknown
from etbuild.inputs import checkpoints
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import Spill
from etbuild.model.joined_tensor import Joined
from etbuild.model.packing import KeptWeights, Packing
from etbuild.model.tensor_bytes import FLOATING, dtype_name, equal
from etbuild.model.tensor_facts import StoredPart, TensorFacts, first_name
from etbuild.model.tensor_files import PackedWeight, TensorFile, open_checkpoint
from etbuild.plan.parts import Weights
from etbuild.plan.step_plans import weights_names, weights_place
from etbuild.surroundings.memory import give_back

_PATH: DocumentPath = ("model", "weights")
_MOST_SUGGESTIONS = 3  # up to this many unknown names, an error suggests a known name for each
_QUANTIZED_ENDS = (
    *(".qweight", ".qzeros", ".g_idx", ".SCB", ".absmax", ".quant_map", "_packed", "_blocks"),
    *(".weight_scale", ".weight_scale_inv", ".weight_zero_point"),
)
"""Endings of names in checkpoints of GPTQ, AWQ, bitsandbytes, compressed-tensors, MXFP4 and others."""
_CASTS = ("float32", "bfloat16", "float16")  # the values of `model.dtype`


@dataclass(frozen=True)
class _StoredTensor:
    """A tensor in a file: the opened file, the file's name, and the tensor's name in the file."""

    opened: TensorFile
    file: str
    name: str

    @property
    def dtype(self) -> str:
        return self.opened.form(self.name)[0]

    @property
    def shape(self) -> list[int]:
        return self.opened.form(self.name)[1]

    def called(self, name: str) -> str:
        """The tensor in a message; `name` is its name in the module."""
        return f"`{name}`" if name == self.name else f"`{self.name}` (in the module `{name}`)"


class CheckpointTensors:
    """The content of parameters and buffers in open files. Tensors are read when they are needed."""

    def __init__(
        self,
        weights: Weights,
        inputs: Given,
        facts: list[TensorFacts],
        cast: bool,
        module: torch.nn.Module | None = None,
        packing: Packing | None = None,
    ) -> None:
        """Opens the files and checks that their tensors fit the module.

        Args:
            weights: The checkpoints in the manifest.
            inputs: The declared inputs, which contain their files.
            facts: Facts about the module's parameters and buffers.
            cast: Whether tensors of another floating-point dtype are converted to the dtype in the module.
            module: The module, if its code is known. Plug-ins need it for some files.
            packing: How the checkpoints are packed; None if they are not.

        Raises:
            InputError: The files cannot be read, or do not fit the module. The error names each parameter that is
                missing or unexpected, or has another shape or dtype.
        """
        self._expected = {entry.name: entry for entry in facts if entry.in_weights}
        self._unread = {part.name for entry in facts if not entry.in_weights for part in entry.stored_as}
        self._packing = packing
        self._kept: KeptWeights | None = None
        self._spill: Spill = lambda tensor, _: tensor
        self._stored: dict[str, _StoredTensor] = {}  # in the order of the files, by name in the module
        problems = [problem for index in range(len(weights)) for problem in self._open(weights, index, inputs, module)]
        problems += self._join()
        # A file may have only one name of a tied parameter, as files of safetensors do.
        names = [name for name in reversed(list(self._stored)) if name in self._expected]
        # By the first name of a parameter, its name in the files.
        self._sources = {first_name(self._expected[name]): name for name in names}
        self._names: dict[str, list[str]] = {}  # all names of a parameter by its first name
        for name, entry in self._expected.items():
            self._names.setdefault(first_name(entry), []).append(name)
        self._compared: set[str] = set()  # first names of parameters whose copies are compared already
        problems += [*self._unmatched(weights), *_misfits(self._stored, self._expected, cast)]
        InputError.raise_if(problems)

    def _open(self, weights: Weights, index: int, inputs: Given, module: torch.nn.Module | None) -> Iterator[Problem]:
        """Opens the files of one checkpoint, and finds the names of their tensors."""
        entry, path = weights[index], weights_place(weights, index)
        files = checkpoints.find(entry.file, weights_names(weights)[entry.file], inputs)
        opened = {name: open_checkpoint(name, file, path, entry.key, module) for name, file in files.files.items()}
        names_in_file = {file: set(tensors.names) for file, tensors in opened.items()}
        for name, file in files.listed.items():
            if name not in names_in_file[file]:
                message = f"`{files.index}` says that `{file}` holds `{name}`, which it does not"
                yield Problem(message, path, "download both again, from the same revision")
        if self._packing is not None:
            opened = self._packing.with_weights(opened)
        names = {name: name for name in sorted({name for tensors in opened.values() for name in tensors.names})}
        filled = {name for tensors in opened.values() for name in tensors.names if not tensors.is_none(name)}
        yield from () if module is None else _extra_states(module, filled, path)
        if entry.ignore or entry.rename:
            from etbuild.model.tensor_names import names_in_module

            names = names_in_module(entry, names, path)
        names = {name: name_in_module for name, name_in_module in names.items() if name_in_module not in self._unread}
        for file, tensors in opened.items():
            names_to_read = [name for name in tensors.names if name in names]
            tensors.check(names_to_read)
            for name in names_to_read:
                stored = _StoredTensor(tensors, file, name)
                earlier = self._stored.setdefault(names[name], stored)
                if earlier is not stored and earlier.name != name:
                    message = f"`{earlier.name}` and `{name}` both become `{names[name]}`"
                    yield Problem(message, path, "change `rename`, or ignore one of them")
                elif earlier is not stored:
                    message = f"`{name}` is in `{earlier.file}` and in `{file}`"
                    yield Problem(message, _PATH, "keep it in one of the files")

    def _join(self) -> Iterator[Problem]:
        """Finds the tensors that the files hold in the forms in which transformers stores them."""
        if self._stored.keys() <= self._expected.keys():
            return
        joined: dict[str, _StoredTensor] = {}
        for name, entry in self._expected.items():
            stored_parts = {part: self._stored[part.name] for part in entry.stored_as if part.name in self._stored}
            if len(stored_parts) < max(1, len(entry.stored_as)):
                continue
            first = next(iter(stored_parts.values()))
            if len(stored_parts) == 1 and entry.stored_as[0].is_whole(entry.shape):
                joined[name] = first
                continue
            yield from _differing_parts(name, stored_parts)
            parts = [(part, stored.opened, stored.name) for part, stored in stored_parts.items()]
            joined[name] = _StoredTensor(Joined(name, entry.shape, parts), first.file, name)
        used = {part.name for name in joined for part in self._expected[name].stored_as}
        self._stored = {name: stored for name, stored in self._stored.items() if name not in used}
        for name in sorted(joined.keys() & self._stored.keys()):
            message = f"`{self._expected[name].stored_as[0].name}` and `{name}` both become `{name}`"
            yield Problem(message, _PATH, "ignore one of them")
        self._stored.update(joined)

    def _unmatched(self, weights: Weights) -> Iterator[Problem]:
        """The problems of parameters that no file has, and of tensors that the module does not have."""
        optional = [pattern for entry in weights for pattern in entry.optional]
        for index, entry in enumerate(weights):
            for number, pattern in enumerate(entry.optional):
                if not any(fnmatchcase(name, pattern) for name in self._expected):
                    path = (*weights_place(weights, index), "optional", number)
                    suggestion = did_you_mean(pattern, self._expected)
                    yield Problem(f"`{pattern}` matches no parameter or buffer of the module", path, suggestion)
        absent = [name for name in sorted(self._expected) if first_name(self._expected[name]) not in self._sources]
        missing = [name for name in absent if not any(fnmatchcase(name, pattern) for pattern in optional)]
        extra = sorted(self._stored.keys() - self._expected.keys())
        hint = _quantized_hint(extra, self._packing) or _prefix_hint(missing, extra)
        for name in missing:
            files = " and ".join(f"`{file}`" for file in weights_names(weights))
            yield Problem(f"parameter `{name}` {self._expected[name]} is missing in {files}", _PATH, hint)
        for name, nearest in unknown(extra, self._expected.keys() - self._stored.keys()):
            stored = self._stored[name]
            message = f"`{stored.file}` has {stored.called(name)}, which is not a parameter or buffer of the module"
            advice = "remove them from the file, list them under `ignore` of `weights`, or change the model"
            yield Problem(message, _PATH, hint or (nearest if len(extra) <= _MOST_SUGGESTIONS else advice))

    def read_all(self, needed: Collection[str] | None = None) -> Iterator[tuple[list[str], torch.Tensor]]:
        """Reads each tensor once, in the order of the files. Yields the tensor with its names in the module.

        Args:
            needed: The names of the tensors to read; None for all.
        """
        names_to_read = None if needed is None else {*needed}
        for first in reversed(self._sources):  # this gives the order of the files
            names = self._names[first]
            if names_to_read is None or not names_to_read.isdisjoint(names):
                yield names, self._tensor(first)

    def tensor(self, name: str) -> torch.Tensor:
        """The content of a parameter or buffer. Each call reads it again."""
        return self._tensor(first_name(self._expected[name]))

    def _tensor(self, first: str) -> torch.Tensor:
        name = self._sources[first]
        if first not in self._compared:
            for other in self._names[first]:
                if other != name and other in self._stored:
                    self._check_same(name, other)
            self._compared.add(first)
        return self._content(self._stored[name], self._expected[name])

    def _check_same(self, name: str, other: str) -> None:
        """Raises InputError if the files hold different content under two names of a parameter."""
        first, copied = self._stored[name], self._stored[other]
        content, copied_content = first.opened.content(first.name), copied.opened.content(copied.name)
        if isinstance(content, torch.Tensor) or isinstance(copied_content, torch.Tensor):
            same = equal(self._floats(content, name), self._floats(copied_content, other))
        else:  # compared before the conversion: a program may keep the originals
            same = equal(content.dequantized(), copied_content.dequantized())
        if not same:
            message = f"`{name}` and `{other}` are one tied parameter of the module"
            files = f"`{first.file}`" if first.file == copied.file else f"`{first.file}` and `{copied.file}`"
            hint = "keep one of the two in the file, or list one under `ignore`"
            raise InputError.at(_PATH, f"{message}, but they differ in {files}", hint)

    def _floats(self, content: torch.Tensor | PackedWeight, name: str) -> torch.Tensor:
        """A file's tensor in the dtype of its parameter, dequantized if it is packed."""
        tensor = content if isinstance(content, torch.Tensor) else content.dequantized()
        return _converted(tensor, self._expected[name], self._stored[name])

    def _content(self, stored: _StoredTensor, expected: TensorFacts) -> torch.Tensor:
        """The content of a parameter, as `_read` reads it, or the tensor that `spill` returns for it."""
        content, is_view = self._read(stored, expected)
        return content if is_view else self._spill(content, lambda: self._read(stored, expected)[0])

    def _read(self, stored: _StoredTensor, expected: TensorFacts) -> tuple[torch.Tensor, bool]:
        """The content of a parameter in its dtype, dequantized if it is packed, and whether it is a view of a mapped
        file. Notes what a program keeps."""
        names = self._names[first_name(expected)]
        if self._kept is None or self._kept.kinds.keys().isdisjoint(names):
            content = stored.opened.take(stored.name)
        elif not isinstance(content := stored.opened.content(stored.name), torch.Tensor):
            content = self._kept.tensor(names, content, getattr(torch, expected.dtype), self._spill)
        converted = _converted(content, expected, stored)
        return converted, stored.opened.is_mapped and converted.data_ptr() == content.data_ptr()

    def by_name(self, needed: Collection[str] | None = None) -> dict[str, torch.Tensor]:
        """The tensors by name, in the order of the module. A tied tensor has all its names.

        Args:
            needed: The names of the tensors to read; None for all.
        """
        content = {name: tensor for names, tensor in self.read_all(needed) for name in names}
        return {name: content[name] for name in self._expected if name in content}

    def load_in_place(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Writes the content of a module's parameters and buffers into their memory, as `load_state_dict` does: their
        views then have it too. No code of the module runs.

        Args:
            tensors: The parameters and buffers by name.
        """
        with torch.no_grad():
            for names, tensor in self.read_all():
                tensors[names[0]].copy_(tensor)

    def load_into(
        self, tensors: Mapping[str, torch.Tensor], kept: KeptWeights | None = None, spill: Spill | None = None
    ) -> None:
        """Replaces the content of a module's parameters and buffers. No code of the module runs.

        Args:
            tensors: The parameters and buffers by name.
            kept: Which packed weights layers keep; None: all are dequantized.
            spill: As in `StepContext`.
        """
        self._kept, self._spill = kept, spill or self._spill
        for name in self._sources:  # frees the old content first, so that each tensor is in memory only once
            if type(tensors[name].data) is torch.Tensor:  # the setter of `data` below refuses other types
                tensors[name].data = tensors[name].data.new_empty(0)
        give_back()
        for names, tensor in self.read_all():
            tensors[names[0]].data = tensor


def _extra_states(module: torch.nn.Module, names: Collection[str], path: DocumentPath) -> Iterator[Problem]:
    """The problems of modules whose code loads other things than tensors from a checkpoint."""
    for name, child in module.named_modules():
        stored = f"{name}._extra_state".removeprefix(".")
        if stored in names and type(child).set_extra_state is not torch.nn.Module.set_extra_state:
            code = f"`{type(child).__name__}.set_extra_state`"
            hint = "keep its content in a buffer, or set it in the factory and remove it from the file"
            yield Problem(f"{code} would load `{stored}`, which is no tensor: a build loads only tensors", path, hint)


def _differing_parts(name: str, parts: Mapping[StoredPart, _StoredTensor]) -> Iterator[Problem]:
    """The problems of a tensor's parts with a wrong shape, or with another dtype than the first part."""
    dtype = next(iter(parts.values())).dtype
    for part, stored in parts.items():
        if (stored.dtype, stored.shape) != (dtype, part.shape_in_file):
            message = (
                f"`{stored.name}`, a part of the parameter `{name}`, is {stored.dtype}{stored.shape} in `{stored.file}`"
            )
            hint = f"it has to be {dtype}{part.shape_in_file}; is the file from the same configuration of the model?"
            yield Problem(message, _PATH, hint)


def _converted(tensor: torch.Tensor, expected: TensorFacts, stored: _StoredTensor) -> torch.Tensor:
    """A tensor in the dtype of its parameter. Raises InputError if a number becomes infinite in that dtype."""
    tensor = tensor.detach()
    if dtype_name(tensor.dtype) == expected.dtype:
        return tensor
    converted = tensor.to(getattr(torch, expected.dtype))
    # A larger dtype has at least as many exponent bits, so it can hold every number. The check would take memory.
    grows = converted.itemsize > tensor.itemsize
    if not grows and bool((converted.isinf() & ~tensor.isinf()).any()):
        largest = float(tensor[tensor.isfinite()].abs().max())
        message = f"{stored.called(expected.name)} has numbers up to {largest:.3g}, which {expected.dtype} cannot hold"
        raise InputError.at(("model", "dtype"), message, "write bfloat16 or float32 in `dtype`, or `keep` a module")
    return converted


def _quantized_hint(names: Collection[str], packing: Packing | None) -> str | None:
    """A hint if names show that a library quantized the checkpoint, with several tensors per weight; otherwise None."""
    example = next((name for name in names if name.endswith(_QUANTIZED_ENDS)), None)
    advice = "use the original checkpoint, and let `quantize` in the manifest quantize it"
    if packing is not None and names:
        form = f"its `quantization_config` says `{packing.method}`, and the page `Quantized checkpoints` has the forms"
        return f"the checkpoint is packed: {form}; if this is another one, {advice}"
    if example is None:
        return None
    read = "It is read for a model of `huggingface` whose `config.json` has a `quantization_config`"
    return f"the checkpoint is quantized, as `{example}` shows. {read}; otherwise {advice}"


def _prefix_hint(missing: list[str], extra: list[str]) -> str | None:
    """A hint if the names in the file and in the module differ by a prefix, such as `model.`; None if they do not."""
    if not missing or not extra:
        return None
    for names, other_names, short, long in ((missing, extra, "module", "file"), (extra, missing, "file", "module")):
        prefix = next((name.removesuffix(names[0]) for name in other_names if name.endswith(f".{names[0]}")), None)
        if prefix is not None and 2 * len({f"{prefix}{name}" for name in names} & set(other_names)) >= len(names):
            rule = f'{{"{prefix}*": "*"}}' if long == "file" else f'{{"*": "{prefix}*"}}'
            return (
                f"the names in the {long} start with `{prefix}`, the names in the {short} do not: write "
                f"`weights: {{file: ..., rename: {rule}}}`"
            )
    return None


def _misfits(stored: dict[str, _StoredTensor], expected: dict[str, TensorFacts], cast: bool) -> Iterator[Problem]:
    """The problems of tensors that have another shape or dtype than in the module."""
    other_dtypes: dict[str, str] = {}  # by name
    for name in sorted(stored.keys() & expected.keys()):
        tensor, entry = stored[name], expected[name]
        if tensor.shape != entry.shape:
            actual = f"{tensor.dtype}{tensor.shape}"
            message = f"parameter {tensor.called(name)} is {entry} in the module and {actual} in `{tensor.file}`"
            yield Problem(message, _PATH, "is the file from the same configuration of the model?")
        elif tensor.dtype == entry.dtype:
            continue
        elif {tensor.dtype, entry.dtype} <= set(FLOATING):
            other_dtypes[name] = tensor.dtype
        else:
            message = (
                f"parameter {tensor.called(name)} is {entry.dtype} in the module and {tensor.dtype} in `{tensor.file}`"
            )
            hint = f"convert the tensor of the file with `tensor.to(torch.{entry.dtype})`"
            if tensor.dtype.startswith("float8"):
                hint = f"{hint}, and multiply it by its scale, which is often another tensor of the checkpoint"
            yield Problem(message, _PATH, hint)
    if other_dtypes and not cast:
        yield _other_dtype(other_dtypes, stored, expected)


def _other_dtype(
    other_dtypes: dict[str, str], stored: dict[str, _StoredTensor], expected: dict[str, TensorFacts]
) -> Problem:
    """The problem of a checkpoint in another floating-point dtype than the module. The hint says how to fix it."""
    in_files = Counter(other_dtypes.values()).most_common()
    in_module = Counter(expected[name].dtype for name in other_dtypes).most_common()
    example = next(iter(other_dtypes))
    shown = stored[example].called(example)
    examples = f"{len(other_dtypes):,} parameters, such as {shown}" if len(other_dtypes) > 1 else shown
    message = (
        f"the weights are {' and '.join(dtype for dtype, _ in in_files)}, and the module is "
        f"{' and '.join(dtype for dtype, _ in in_module)}: {examples}"
    )
    lines = [
        f"`dtype: {dtypes[0][0]}` to convert {converted}"
        for dtypes, converted in ((in_module, "the weights"), (in_files, "the module"))
        if dtypes[0][0] in _CASTS
    ]
    return Problem(message, _PATH, f"write below `model` {', or '.join(lines)}" if lines else None)
