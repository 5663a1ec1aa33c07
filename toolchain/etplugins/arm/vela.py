"""Vela, which compiles TOSA graphs for Ethos-U: its own configurations of systems, and what it says of a delegate."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etbuild.patching import replaced
from etbuild.surroundings.library_output import shown_if_it_fails

_OWN = "Of_Manifest"
_SECTIONS = {"system_config": "System_Config", "memory_mode": "Memory_Mode"}
_OUTPUT, _CONFIG = "--output-dir=", "--config="
_MEMORIES: dict[str, tuple[tuple[str, ...], Callable[[Iterator[float]], float]]] = {
    "sram_bytes": (("sram",), lambda sizes: max(sizes, default=0.0)),
    "dram_bytes": (("dram",), lambda sizes: max(sizes, default=0.0)),
    "flash_bytes": (("on_chip_flash", "off_chip_flash"), sum),
}
"""The areas of Vela's summary, and how those of several delegates count together: they run one after the other."""
_files: dict[str, str] = {}
"""The content of files of configurations, by their names for Vela."""
_summaries: dict[str, Mapping[str, str]] = {}
"""Vela's summaries of delegates, by the digests of what it compiled."""


def of_manifest(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The arguments of ExecuTorch's compile spec for a system that the manifest describes.

    Args:
        config: The option `config_ini`.
    """
    text = ""
    for key, values in sorted(config.items()):
        text += "".join([f"[{_SECTIONS[key]}.{_OWN}]\n", *(f"{name}={value}\n" for name, value in values.items())])
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.ini"  # a path would be in the program
    _files[name] = text
    return {**dict.fromkeys(config, _OWN), "extra_flags": [f"{_CONFIG}{name}"]}


@contextmanager
def watched() -> Iterator[None]:
    """A context that shows Vela's messages, thirty lines for each delegate, only if it fails, and keeps summaries."""
    from executorch.backends.arm import arm_vela
    from executorch.backends.arm.ethosu.backend import EthosUBackend

    if not arm_vela.has_vela:  # another of Arm's backends has imported `arm_vela`
        yield
        return
    main, compile_graph, name = arm_vela.vela.main, EthosUBackend._compile_tosa_flatbuffer, "_compile_tosa_flatbuffer"
    said: list[Mapping[str, str]] = []

    def quiet_main(arguments: list[str]) -> Any:
        with TemporaryDirectory() as directory, shown_if_it_fails():
            result = main(_with_files(arguments, Path(directory)))
        (output,) = (each.removeprefix(_OUTPUT) for each in arguments if each.startswith(_OUTPUT))
        (summary,) = Path(output).glob("*_summary_*.csv")
        with summary.open(encoding="utf-8", newline="") as file:
            said.append(next(csv.DictReader(file)))
        return result

    def noted(*arguments: Any) -> Any:
        result = compile_graph(*arguments)
        if said:
            _summaries[_digest(_compiled(result))] = said.pop()
        return result

    with replaced(arm_vela.vela, "main", quiet_main), replaced(EthosUBackend, name, staticmethod(noted)):
        yield


def estimates(program: Any) -> dict[str, float]:
    """What Vela estimates for the delegates of a method, of which this is the lowered `ExportedProgram`, by keys of
    `checks.vela`, with the number of `delegates` and the clock in `hertz`."""
    from etbuild.lower.named_data import delegates

    compiled = [_digest(each.processed_bytes) for each in delegates(program.graph_module)]
    found = [_summaries[each] for each in compiled if each in _summaries]
    clock = max((float(each["core_clock"]) for each in found), default=1.0)
    cycles = sum(float(each["cycles_total"]) for each in found)
    sizes = {key: together(_bytes(each, areas) for each in found) for key, (areas, together) in _MEMORIES.items()}
    return {"delegates": len(found), "hertz": clock, "cycles": cycles, "milliseconds": 1000 * cycles / clock, **sizes}


def _bytes(summary: Mapping[str, str], areas: Sequence[str]) -> float:
    return sum(1024 * float(summary[f"{area}_memory_used"]) for area in areas)


def _with_files(arguments: list[str], directory: Path) -> list[str]:
    """The arguments with the paths of `_files`, which are written. They come last: one may inherit from Vela's own."""
    own = [name for each in arguments if (name := each.removeprefix(_CONFIG)) in _files]
    for name in own:
        (directory / name).write_text(_files[name], "utf-8")
    others = [each for each in arguments if each.removeprefix(_CONFIG) not in _files]
    return [*others, *(f"{_CONFIG}{directory / name}" for name in own)]


def _compiled(result: Any) -> bytes:
    """What Vela has compiled. Before release 1.5, ExecuTorch has nothing around it."""
    compiled: bytes = getattr(result, "processed_bytes", result)
    return compiled


def _digest(compiled: bytes) -> str:
    return hashlib.sha256(compiled).hexdigest()
