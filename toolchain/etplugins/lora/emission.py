"""Puts the weights of adapters into a program that was lowered and emitted with stand-ins for them.

So new weights of an adapter lower nothing, and change only the adapter's own `.ptd`. This works because each stand-in
is in named data unchanged, under a name of its own. A backend that keeps weights in another form, or a pass that
computes with them, would make the program compute with stand-ins. Both are errors.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch.export import ExportedProgram

from etbuild.emit.emitted import Emitted
from etbuild.errors import BuildError, Problem
from etbuild.lower import named_data
from etbuild.lower.blobs import Blob
from etplugins.lora.layers import stand_in

_ELEMENT = 4  # bytes: adapters are in float32


def check_emitted(programs: Mapping[str, ExportedProgram], names: Collection[str]) -> Callable[[Emitted], None]:
    """Returns a function that fails if named data of emitted methods does not hold the weights of adapters unchanged.

    Args:
        programs: The exported methods, before they are lowered.
        names: The names of the weights of adapters.
    """
    read = {
        method: {name for node, name in named_data.weights(program) if node.users and name in names}
        for method, program in programs.items()
    }
    return functools.partial(_check_kept, read=read)


def _check_kept(emitted: Emitted, read: Mapping[str, set[str]]) -> None:
    """Raises BuildError if a backend keeps a weight in another form, or if a pass computed with one."""
    portable = {name for names in emitted.external_names.values() for name in names}
    problems = []
    for method, wanted in sorted(read.items()):
        path, kept = ("methods", method, "adapter"), set[str]()
        for reader in emitted.facts[method].readers:
            of_adapters = {name: size for name, size in reader.weights.values() if name in wanted}
            kept.update(of_adapters if reader.backend else of_adapters.keys() & portable)
            others = [name for name, size in of_adapters.items() if _digest(name, size) not in reader.named_data]
            if reader.backend and others:
                message = f"{reader.backend} keeps the adapter's weight `{min(others)}` in its own form"
                hint = "use `xnnpack` or no partitioner for this method, or merge the adapter into the model's weights"
                problems.append(Problem(message, path, hint))
        if wanted - kept:
            message = f"a pass computed something from the adapter's weight `{min(wanted - kept)}`"
            hint = "remove the pass or option, or merge the adapter into the model's weights"
            problems.append(Problem(message, path, hint))
    BuildError.raise_if(problems)


def _digest(name: str, size: int) -> str:
    """The digest of a stand-in of a size in bytes, in hex."""
    return hashlib.sha256(named_data.tensor_content(stand_in(name, size // _ELEMENT))).hexdigest()


def filled(parts: Sequence[Emitted], weights: Mapping[str, torch.Tensor]) -> list[Emitted]:
    """Emitted methods with the weights of adapters in place of the stand-ins.

    Args:
        parts: The emitted methods.
        weights: The weights of all adapters by name, in float32.

    Raises:
        BuildError: A stand-in is in the program itself, or two are equal.
    """
    content = {_digest(name, weight.nbytes): named_data.tensor_content(weight) for name, weight in weights.items()}
    if len(content) < len(weights):
        raise BuildError.of("two weights of adapters have the same stand-in", "rename one of the adapters")
    if any(blob.sha256 in content for part in parts for blob in (*part.constants, *part.delegates) if content):
        raise BuildError.of("a weight of an adapter would be in the program itself")
    return [
        replace(
            part,
            external=[_filled(blob, content) for blob in part.external],
            requests=[(key, replace(request, data=_filled(request.data, content))) for key, request in part.requests],
        )
        for part in parts
    ]


def _filled(blob: Blob, content: Mapping[str, bytes]) -> Blob:
    """The blob with new content. It keeps its digest, from which methods know that they share it."""
    return Blob(content[blob.sha256], blob.sha256) if blob.sha256 in content else blob
