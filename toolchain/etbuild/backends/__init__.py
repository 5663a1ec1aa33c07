"""The backends by name. A backend checks its options without torch, and makes its partitioner with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from etbuild import schema
from etbuild.backends import custom, xnnpack
from etbuild.errors import DocumentPath, Problem, did_you_mean


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        name: Its name in a manifest; `backend-NAME.schema.json` describes its options.
        create: Makes ExecuTorch's `Partitioner` from the options; its second argument loads a `module:callable` of the
            declared sources. None: nothing is delegated, all runs on ExecuTorch's portable operators.
        separable: Lowering methods one by one and merging them gives what lowering them together gives: the backend
            inherits ExecuTorch's `preprocess_multimethod`, a loop over the methods.
        weight_only: It takes linear layers of which torchao has quantized the weights alone.
        create_quantizer: Makes its PT2E `Quantizer` from the options, which `quantizer-NAME.schema.json` describes, and
            `qat`: whether the method is trained. Its second argument is as that of `create`. None: it has none.
        equal_partitions: It pairs the partitions of methods, the first with the first, and refuses other counts.
    """

    name: str
    create: Callable[[dict[str, Any], Callable[[str], Any]], Any] | None
    separable: bool
    weight_only: bool = True
    create_quantizer: Callable[[dict[str, Any], Callable[[str], Any]], Any] | None = None
    equal_partitions: bool = False

    def check(self, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
        """What is wrong with the options that stand at `path`."""
        return schema.problems(f"backend-{self.name}", options, path)


BACKENDS = {
    backend.name: backend
    for backend in (
        # What a custom partitioner looks at no one knows.
        Backend("custom", custom.create, separable=False, create_quantizer=custom.create_quantizer),
        Backend("portable", None, separable=True, weight_only=False),
        Backend(
            "xnnpack",
            xnnpack.create,
            separable=True,
            weight_only=False,
            create_quantizer=xnnpack.create_quantizer,
        ),
    )
}


def separable(names: Iterable[str]) -> bool:
    """Whether methods that are lowered by these backends can be lowered one by one."""
    return all(BACKENDS[name].separable for name in names)


def equal_partitions(name: str, options: dict[str, Any]) -> bool:
    """Whether a partitioner entry needs as many partitions in each method. What `custom` makes says so by itself."""
    return BACKENDS[name].equal_partitions or bool(name == "custom" and options.get("equal_partitions"))


def check(name: str, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
    """What is wrong with a partitioner entry of a manifest that stands at `path`."""
    backend = BACKENDS.get(name)
    if backend is None:
        return [Problem(f"unknown backend `{name}`", path, did_you_mean(name, BACKENDS))]
    return backend.check(options, (*path, "options"))


def check_quantizer(name: str, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
    """What is wrong with a quantizer entry of a manifest that stands at `path`."""
    known = sorted(backend.name for backend in BACKENDS.values() if backend.create_quantizer is not None)
    if name in known:
        return schema.problems(f"quantizer-{name}", options, (*path, "options"))
    message = f"the backend `{name}` has no quantizer" if name in BACKENDS else f"unknown backend `{name}`"
    return [Problem(message, path, did_you_mean(name, known))]
