"""The backends by name. A backend checks its options without torch, and makes its partitioner with it.

Other packages add backends of their own by an entry point of the group `etbuild.backends`, which names an instance of
`Backend`. They are looked for when a name is none of ours, and that one alone is loaded.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from etbuild.backends import (
    aoti,
    arm,
    cadence,
    cortex_m,
    custom,
    entry_points,
    mediatek,
    mlx,
    native,
    needs,
    nxp,
    openvino,
    qualcomm,
    samsung,
    vulkan,
    xnnpack,
)
from etbuild.backends.backend import (
    Backend,
    Context,
    Edge,
    Need,
    OptionError,
    Options,
    Pairing,
    Partitioners,
    options_at,
)
from etbuild.backends.coreml import backend as coreml
from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean

__all__ = [
    "BACKENDS",
    "Backend",
    "Context",
    "Edge",
    "Need",
    "OptionError",
    "Options",
    "Pairing",
    "Partitioners",
    "options_at",
]

_VELA = ("ethos-u-vela", "ml-dtypes", "tosa-tools")

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "cadence", None, separable=False, needs=(needs.python((3, 12)),), edge=cadence.edge, whole_program=True
        ),
        Backend(
            "coreml",
            coreml.create,
            separable=False,
            pairing=Pairing(coreml.pairs, coreml.pairs_of, otherwise="`multimethod_weight_sharing_strategy: disabled`"),
            apart=coreml.apart,
            apart_of=coreml.apart_of,
            needs_for=coreml.needs_for,
            distributions=("coremltools",),
            around=coreml.around,
            module="executorch.backends.apple.coreml.compiler",
            check_options=coreml.check_options,
            weight_only=True,
            create_quantizer=coreml.create_quantizer,
        ),
        Backend(
            "cortex-m",
            None,
            separable=False,
            edge=cortex_m.edge,
            whole_program=True,
            create_quantizer=cortex_m.create_quantizer,
        ),
        Backend(
            "cuda",
            aoti.create_cuda,
            separable=False,
            needs=(aoti.TRITON, aoti.CUDA),
            distributions=("triton",),
            weight_only=True,
        ),
        Backend(
            "custom",
            custom.create,
            separable=False,  # what it looks at no one knows
            pairing=Pairing(custom.pairs),
            apart=custom.apart,
            weight_only=True,
            create_quantizer=custom.create_quantizer,
        ),
        Backend(
            "ethos-u",
            arm.create_ethos_u,
            separable=True,
            needs=(arm.VELA, arm.TOSA),
            distributions=_VELA,
            around=arm.around_ethos_u,
            module="executorch.backends.arm.arm_vela",
            create_quantizer=arm.create_ethos_u_quantizer,
            same_options=("target",),
        ),
        Backend(
            "mediatek",
            mediatek.create,
            separable=False,
            needs=(mediatek.CONVERTER, mediatek.COMPILER),
            distributions=("mtk-converter", "mtk-neuron"),
            create_quantizer=mediatek.create_quantizer,
        ),
        Backend("metal", aoti.create_metal, separable=True, needs=(aoti.MACOS,), weight_only=True),
        Backend("mlx", mlx.create, separable=False, needs=(mlx.GENERATED,), edge=mlx.edge, weight_only=True),
        Backend("native", native.create, separable=True),
        Backend(
            "nxp",
            nxp.create,
            separable=False,
            needs=(nxp.SDK,),
            distributions=("eiq-neutron-sdk",),
            edge=nxp.edge,
            create_quantizer=nxp.create_quantizer,
            same_options=("target",),
        ),
        Backend(
            "openvino",
            openvino.create,
            separable=True,
            needs=(openvino.OPENVINO, openvino.NNCF),
            distributions=("nncf", "openvino"),
            around=openvino.around,
            module="executorch.backends.openvino.preprocess",
            create_quantizer=openvino.create_quantizer,
            fold_quantize=False,
        ),
        Backend("portable", None, separable=True),
        Backend(
            "qualcomm",
            qualcomm.create,
            separable=False,
            pairing=Pairing(of_partitioner=qualcomm.pairs_of),
            needs=(qualcomm.SDK,),
            edge=qualcomm.edge,
            around=qualcomm.around,
            create_quantizer=qualcomm.create_quantizer,
            same_options=("soc_model",),
        ),
        Backend(
            "samsung",
            samsung.create,
            separable=False,
            needs=(samsung.ADAPTOR, samsung.SDK),
            edge=samsung.edge,
            create_quantizer=samsung.create_quantizer,
        ),
        Backend(
            "tosa",
            arm.create_tosa,
            separable=True,
            needs=(arm.TOSA,),
            distributions=_VELA,
            create_quantizer=arm.create_tosa_quantizer,
        ),
        Backend(
            "vgf",
            arm.create_vgf,
            separable=True,
            needs=(arm.TOSA, arm.CONVERTER),
            distributions=(*_VELA, "ai-ml-sdk-model-converter"),
            create_quantizer=arm.create_vgf_quantizer,
        ),
        Backend(
            "vulkan",
            vulkan.create,
            separable=False,  # whether merged methods have the bytes of joint ones was not tried
            weight_only=True,
            create_quantizer=vulkan.create_quantizer,
        ),
        Backend("webgpu", vulkan.create_webgpu, separable=False, weight_only=True),
        Backend("xnnpack", xnnpack.create, separable=True, create_quantizer=xnnpack.create_quantizer),
    )
}


def find(name: str) -> Backend | None:
    """The backend of this name, one of ours or of another package.

    Raises:
        InputError: The package that has it is broken.
    """
    return BACKENDS.get(name) or entry_points.load(name)


def known() -> set[str]:
    """The names of all backends, those of other packages too."""
    return {*BACKENDS, *entry_points.names()}


def get(name: str) -> Backend:
    """The backend of a name that has been checked."""
    found = find(name)
    if found is None:
        raise InputError([_unknown(name, ())])
    return found


@contextlib.contextmanager
def _asked(name: str, action: str, path: DocumentPath | None = None) -> Iterator[None]:
    """What a backend of another package raises is no bug of ours."""
    try:
        yield
    except Exception as error:
        if name in BACKENDS:
            raise
        from etbuild.exception_text import summary

        message = f"the backend `{name}` failed when {action}: {summary(error)}"
        raise InputError([Problem(message, path)]) from error


def distributions(names: Iterable[str]) -> set[str]:
    """The distributions that reach the bytes where these backends are used, besides those of ExecuTorch."""
    found: set[str] = set()
    for name in names:
        found.update(get(name).distributions)
        if name == "custom":  # it may make a partitioner of any backend
            found.update(*(backend.distributions for backend in BACKENDS.values()))
        if name not in BACKENDS:
            found.update(filter(None, [entry_points.owner(name)]))
    return found


def separable(names: Iterable[str]) -> bool:
    """Whether methods that are lowered by these backends can be lowered one by one."""
    return all(get(name).separable for name in names)


def whole_program(name: str) -> bool:
    """Whether a backend changes methods that do not name it."""
    backend = _if_sound(name)
    return backend is not None and backend.whole_program


def same_options(name: str) -> tuple[str, ...]:
    """The options of a backend's quantizer that have to be those of its partitioner."""
    backend = _if_sound(name)
    return () if backend is None else backend.same_options


def _if_sound(name: str) -> Backend | None:
    """The backend of this name; what is wrong with it `check` says."""
    try:
        return find(name)
    except InputError:
        return None


def pairing(name: str, options: Options, path: DocumentPath) -> Pairing | None:
    """How a partitioner entry at `path` has partitions of methods paired; None: it has not.

    Raises:
        InputError: The backend is of another package, and cannot say it.
    """
    found = get(name).pairing
    with _asked(name, "it was asked for `pairing.of_options`", path):
        return found if found is not None and found.of_options(options) else None


def pairing_of(partitioner: Any, names: Iterable[str]) -> Pairing | None:
    """How partitions of a partitioner that a recipe made are paired with those of other methods; None: they are not.

    Args:
        partitioner: ExecuTorch's.
        names: The backends that a plan names. They are asked, and all of ours.

    Raises:
        InputError: A backend is of another package, and cannot say it.
    """
    for name in sorted({*BACKENDS, *names}):
        wanted = get(name).pairing
        if wanted is not None and wanted.of_partitioner is not None:
            with _asked(name, "it was asked for `pairing.of_partitioner`"):
                if wanted.of_partitioner(partitioner):
                    return wanted
    return None


def together(name: str, options: Options, path: DocumentPath) -> tuple[str, str]:
    """What is the same for partitioner entries, this one at `path`, that a backend may be called for together.

    Raises:
        InputError: The backend is of another package, and cannot say it, or not as JSON.
    """
    apart = get(name).apart
    with _asked(name, "it was asked for `apart`", path):
        return name, json.dumps(apart(options) if apart else None, sort_keys=True)


def apart_of(partitioner: Any, names: Iterable[str]) -> str:
    """The same as the second part of `together`, of a partitioner that something else made.

    Args:
        partitioner: ExecuTorch's.
        names: The backends that a plan names. They are asked, and all of ours.

    Raises:
        InputError: A backend is of another package, and cannot say it, or not as JSON.
    """
    for name in sorted({*BACKENDS, *names}):
        asked = get(name).apart_of
        if asked is not None:
            with _asked(name, "it was asked for `apart_of`"):
                found = asked(partitioner)
                if found is not None:
                    return json.dumps(found, sort_keys=True)
    return json.dumps(None)


def owner(name: str) -> str | None:
    """The distribution that a backend comes from; None: it is one of ours."""
    return None if name in BACKENDS else entry_points.owner(name)


def check(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """What is wrong with a partitioner entry of a manifest that stands at `path`."""
    try:
        backend = find(name)
    except InputError as error:
        return [replace(problem, path=path) for problem in error.problems]
    if backend is None:
        return [_unknown(name, path)]
    options_path = (*path, "options")
    try:
        with _asked(name, "it was asked for `check_options`", options_path):
            return backend.check(options, options_path)
    except InputError as error:
        return error.problems


def check_quantizer(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """What is wrong with a quantizer entry of a manifest that stands at `path`."""
    try:
        backend = find(name)
    except InputError as error:
        return [replace(problem, path=path) for problem in error.problems]
    if backend is not None and backend.create_quantizer is not None:
        return backend.check_quantizer(options, (*path, "options"))
    message = f"unknown backend `{name}`" if backend is None else f"the backend `{name}` has no quantizer"
    without = {one.name for one in BACKENDS.values() if one.create_quantizer is None}
    return [Problem(message, path, did_you_mean(name, known() - without - {name}))]


def _unknown(name: str, path: DocumentPath) -> Problem:
    return Problem(f"unknown backend `{name}`", path, did_you_mean(name, known()))


def check_installed(named: Mapping[str, DocumentPath], entries: Mapping[DocumentPath, Mapping[str, Any]]) -> None:
    """Sees whether everything is there that backends need.

    Args:
        named: The backends, each with the place in the manifest that names it.
        entries: The partitioner entries, by place.

    Raises:
        InputError: Something is not. Says what, and what to do.
    """
    found = []
    for name, path in named.items():
        with _asked(name, "it looked for what it needs", path):
            found += get(name).missing(path)
    for path, entry in entries.items():
        with _asked(entry["backend"], "it looked for what it needs", path):
            found += get(entry["backend"]).missing_for(entry["options"], path)
    if found:
        raise InputError(found)


@contextlib.contextmanager
def around(names: Iterable[str], partitioners: Partitioners) -> Iterator[None]:
    """Inside, methods can be lowered together.

    Args:
        names: The backends that a plan names.
        partitioners: Of each method, those that were made.
    """
    # A custom partitioner, or a recipe of the sources, may be one of ours.
    also = {backend.name for backend in BACKENDS.values() if backend.module in sys.modules}
    with contextlib.ExitStack() as entered:
        for name in sorted({*names, *also}):
            enter = get(name).around
            if enter is not None:
                entered.enter_context(enter(partitioners))
        yield
