"""Compares exported methods with the model in eager PyTorch. Another comparison has made and recorded the calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.export import ExportedProgram
from torch.utils._pytree import TreeSpec

from etbuild.errors import EtbuildError
from etbuild.exception_text import summary
from etplugins.comparison import accuracy, quantized
from etplugins.comparison.compare import FIRST, OF_SAMPLE, Call, Comparison, Wrong
from etplugins.comparison.eager import EagerMethod
from etplugins.comparison.graph import is_quantized
from etplugins.comparison.hints import states
from etplugins.comparison.parts import Tolerance
from etplugins.edges import facts as edges


@dataclass(frozen=True)
class ExportedForm:
    """Facts about an exported method for a comparison with the model.

    Attributes:
        inputs: How its inputs belong together.
        is_quantized: Whether it has operators that quantize.
        has_states: Whether it changes buffers.
        edges: The numbers that its inputs, and its outputs, stand for.
        ranges: The least and the largest number to which each input is quantized; None for an input that is not.
    """

    inputs: TreeSpec
    is_quantized: bool
    has_states: bool
    edges: tuple[edges.Edges, edges.Edges] = ((), ())
    ranges: Sequence[tuple[float, float] | None] = ()

    @classmethod
    def of(cls, program: ExportedProgram) -> ExportedForm:
        """The form of a method."""
        facts = edges.of_program(program), edges.ranges(program)
        return cls(program.call_spec.in_spec, is_quantized(program), bool(states(program)), *facts)


class ModelComparison:
    """Calls the model as exported methods were called.

    Args:
        eager: The methods of the model, by name.
        forms: The exported methods, by name. All share their state.
        tolerances: How far an element may be from the expected one, by method; None for the default.
        calibrated: The methods whose quantization has ranges that a calibration has found.
        converted: Whether the methods compute in 16-bit floats, and the model in float32.
        exported: Makes a `Comparison` of these methods, which judges a difference.

    Attributes:
        notes: The parts of a method that were not compared, by the method's name.
        losses: The errors from the quantization of a method, by the method's name.
    """

    def __init__(
        self,
        eager: Mapping[str, EagerMethod],
        forms: Mapping[str, ExportedForm],
        tolerances: Mapping[str, Tolerance | None],
        calibrated: Collection[str],
        converted: bool,
        exported: Callable[[], Comparison],
    ) -> None:
        self._eager, self._forms, self._tolerances = dict(eager), forms, tolerances
        self._calibrated, self._converted, self._make = calibrated, converted, exported
        self.notes: dict[str, str] = {}
        self.losses: dict[str, str] = {}
        self._ratios: dict[str, list[float]] = {}

    def first_wrong(self, calls: Sequence[Call]) -> Wrong | None:
        """Makes calls until an exported method differs from the model. Returns the wrong call; None if all are right.

        In these calls, the program has computed what the exported methods compute.
        """
        ends = {name: number for number, (name, label, *_) in enumerate(calls, 1) if label.startswith(OF_SAMPLE)}
        judged = [
            not self._forms[name].is_quantized or (label.startswith(OF_SAMPLE) if name in ends else label == FIRST)
            for name, label, *_ in calls
        ]
        last = max((number for number, each in enumerate(judged, 1) if each), default=0)
        for number, (name, label, leaves, exported) in enumerate(calls[:last], 1):
            taken, exported = self._numbers(name, leaves, exported)
            expected = self._outputs(name, label, taken)
            if self._forms[name].is_quantized:
                is_last, last_call = number == ends.get(name, number), (name, label, taken, exported)
                made = [*calls[: number - 1], last_call]
                wrong = self._wrong_quantization(made, expected, is_last) if judged[number - 1] else None
            elif expected is None:
                continue
            else:
                self._note_loss(name, label, exported, expected)
                found = accuracy.wrong_outputs(exported, expected, self._tolerances[name], False)
                differs = "\n".join(found)
                wrong = self._exported.wrong_export(calls[:number], expected, differs) if found else None
            if wrong is not None:
                return wrong
        return None

    def _note_loss(self, name: str, label: str, exported: Sequence[Any], expected: Sequence[Any]) -> None:
        """Keeps the error of a method that computes in 16 bits, in calls that the manifest asks for."""
        asked = self._converted and (label == FIRST or label.startswith(OF_SAMPLE))
        found = quantized.loss(expected, exported) if asked else None
        if found is not None:
            self._ratios.setdefault(name, []).append(found)
            self.losses[name] = quantized.shown(self._ratios[name])

    def _numbers(self, name: str, leaves: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """The inputs and outputs of a call as the model has them: quantizing a method may have made them integers."""
        if name not in self._calibrated or not any(map(any, self._forms[name].edges)):
            return leaves, outputs
        of_inputs, of_outputs = self._forms[name].edges
        return edges.dequantized(leaves, of_inputs), edges.dequantized(outputs, of_outputs)

    @cached_property
    def _exported(self) -> Comparison:
        return self._make()

    def _outputs(self, name: str, label: str, leaves: Sequence[Any]) -> list[Any] | None:
        """The outputs of the model; None if it does not take the inputs."""
        if name not in self._eager:
            return None
        try:
            return self._eager[name].call(self._forms[name].inputs, leaves)
        except EtbuildError:
            raise
        except Exception as error:  # noqa: BLE001 - code of the model: it may refuse values that an exported graph takes
            has_state = any(form.has_states for form in self._forms.values())
            if label == FIRST or has_state:  # the failed call may have changed half of it
                del self._eager[name]
                self.notes[name] = f"in part: the model itself fails in {label}: {summary(error)}"
            return None

    def _wrong_quantization(self, calls: Sequence[Call], in_float: list[Any] | None, is_last: bool) -> Wrong | None:
        """Judges the effect of a method's quantization against the model, which computes in float.

        It looks at the samples only, or else at the example inputs, since others may be outside of the ranges for which
        the method is quantized. Only for a calibrated method is a large loss wrong: weights of 4 bits may lose as much,
        and are right. With a tolerance in the manifest, any loss is allowed.
        """
        name, _, leaves, rounded = calls[-1]
        says = in_float is not None and quantized.says_something(leaves)
        found = quantized.loss(in_float or [], rounded) if says else None
        ratios = self._ratios.setdefault(name, [])
        ratios += [] if found is None else [found]
        if not ratios or not is_last:
            return None
        self.losses[name] = quantized.shown(ratios)
        problem = quantized.problem(ratios, quantized.beyond(leaves, self._forms[name].ranges))
        if problem is None or name not in self._calibrated or self._tolerances[name] is not None:
            return None
        return Wrong(name, problem, leaves, {}, [(each[0], each[2]) for each in calls[:-1]], blames="quantization")
