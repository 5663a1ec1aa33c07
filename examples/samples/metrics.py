"""How well a program does its task."""

from typing import Any


def accuracy(program: Any, samples: list[Any]) -> float:
    """The part of the pictures to which the program gives the right kind."""
    classify = program.method("forward")
    right = [int(classify(*sample.inputs)[0].argmax()) == int(sample.label) for sample in samples]
    return sum(right) / len(right)
