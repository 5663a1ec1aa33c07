"""Finds the cache that a language model can have, by calling the model without weights.

transformers makes the model of its configuration, in a process that ends. Nothing is computed: only shapes are known.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from etbuild.errors import DocumentPath, EtbuildError, InputError
from etbuild.processes import forked

if TYPE_CHECKING:
    from etbuild.manifest import sections

_HUGGINGFACE: DocumentPath = ("model", "huggingface")
_NOT_THIS_KIND = ((*_HUGGINGFACE, "cache"), (*_HUGGINGFACE, "cache", "kind"), (*_HUGGINGFACE, "attention"))
_TOO_LONG = ((*_HUGGINGFACE, "cache", "max_length"),)


class Cache(NamedTuple):
    """A cache.

    Attributes:
        kind: `cache.kind` in the manifest.
        length: The number of tokens that it holds.
    """

    kind: str
    length: int


def found(config: Path, length: int) -> Cache:
    """The first cache that the model can have: ExecuTorch's, or else that of transformers.

    It is ExecuTorch's of this length if transformers is not installed, or if the model cannot be made: then the build
    says why.

    Args:
        config: The configuration of the model.
        length: The number of tokens that it should hold. It may hold fewer: a number that the configuration has.

    Raises:
        InputError: The model can have no cache.
    """
    wanted = Cache("custom", length)
    if importlib.util.find_spec("transformers") is None:
        return wanted
    try:
        cache, reason = forked.run({"init": lambda: _tried(config, length)}, 1)["init"]
    except (EtbuildError, forked.ChildFailed):
        return wanted
    if reason:
        raise InputError.of(f"{config}: {reason}", "write a factory for this model (docs/huggingface.md)")
    return cache or wanted


def _tried(config: Path, longest: int) -> tuple[Cache | None, str]:
    """The first cache that the model can have; None if it is not known. And why it can have none; empty if it can."""
    from etbuild.processes.library_output import library_messages_off, native_messages_off, stdout_for_results

    kinds, refusal = ["custom", "static"], ""
    with library_messages_off(), native_messages_off(), stdout_for_results():
        for length in _lengths(config, longest):
            for kind in [*kinds]:
                error = _error(config, Cache(kind, length))
                if error is None:
                    return Cache(kind, length), ""
                if isinstance(error, EtbuildError) and _is_about(error, _NOT_THIS_KIND):
                    kinds.remove(kind)
                    refusal = error.problems[0].message
                elif isinstance(error, EtbuildError) and not _is_about(error, _TOO_LONG):
                    return None, ""
            if not kinds:
                return None, refusal
    return Cache(kinds[0], longest), ""


def _lengths(config: Path, length: int) -> Iterator[int]:
    """The lengths to try: the wanted one, and smaller numbers of the configuration, the largest first. The number of
    positions is among them, under the name that the family has for it."""
    from transformers import AutoConfig

    yield length
    values = AutoConfig.from_pretrained(config.parent, trust_remote_code=False).to_dict().values()
    yield from sorted({each for each in values if type(each) is int and 1 < each < length}, reverse=True)


def _is_about(error: EtbuildError, parts: tuple[DocumentPath, ...]) -> bool:
    """Whether an error is about one of these parts of the manifest."""
    return error.problems[0].path in parts


def _error(config: Path, cache: Cache) -> Exception | None:
    """The error of a call with a cache, or of making the model. None if there is none, or if it needs values."""
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        model = _model(config, cache)
        with FakeCopyMode(mode):
            copied = copy.deepcopy(model)
        with torch.no_grad(), mode:
            copied.forward(torch.zeros((1, 1), dtype=torch.int64), torch.tensor([0]))
    except DataDependentOutputException:
        return None
    except Exception as error:  # noqa: BLE001 - the code of any model runs here
        return error
    return None


def _model(config: Path, cache: Cache) -> Any:
    """The model with a cache. Its parameters have no content, and no memory is used for them."""
    from etbuild.inputs.declared import Inputs
    from etbuild.inputs.import_graph import used_sources
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.model import module
    from etbuild.plan.plan import from_manifest

    cached: sections.Cache = {"max_length": cache.length, "max_seq_length": 1, "kind": cache.kind}
    model: sections.Model = {"huggingface": {"task": "text-generation", "config": config.name, "cache": cached}}
    plan = from_manifest({"name": "trial", "model": model})
    inputs = Inputs(roots=[config.parent])
    with importable(used_sources(inputs, plan.export_plan), []) as finder:
        return module.create(plan.model, StepContext(inputs, finder), loaded=True)
