"""Which weights `quantize` left in floats, as the report says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from etplugins.quantize import reached
from etplugins.quantize.parts import Quantize, TorchaoEntry


def test_weights_of_one_name_in_two_programs_count_as_two() -> None:
    """Methods whose programs come from files may have different weights with the same name."""

    def graph(size: int) -> dict[str, Any]:
        shape = [size, 4, 1]
        weight = {"name": "conv.weight", "dtype": "float32", "shape": shape, "bytes": 16 * size, "parameter": True}
        node = {"operator": "aten::convolution", "inputs": [], "layer": "conv", "weights": [0]}
        return {"nodes": [node], "blocks": [], "weights": [weight]}

    method = SimpleNamespace(quantize=SimpleNamespace(after_export=True))
    plan: Any = SimpleNamespace(methods={"first": method, "same": method, "second": method})
    lowering: Any = {"graphs": {"first": graph(1), "same": graph(1), "second": graph(100)}}
    why = "no quantizer of `pt2e` took its `aten::convolution`"
    assert reached.find(plan, lowering) == {
        "weights": 2,
        "quantized": 0,
        "bytes": 1616,
        "float_bytes": 1616,
        "in_floats": [{"weights": "conv.weight", "count": 2, "bytes": 1616, "why": why}],
    }


def test_a_layer_that_is_called_twice_says_why_a_call_is_not_quantized() -> None:
    """XNNPACK's quantizer takes a convolution's weight in one call only: a Siamese network holds it twice."""
    facts = {"shape": [4, 4, 3], "bytes": 192, "parameter": True}
    weights = [
        {**facts, "name": "net.0.weight", "dtype": "float32"},
        {**facts, "name": "net.0.weight_quantized", "dtype": "int8", "bytes": 48},
    ]
    operators = ("aten::convolution", "quantized_decomposed::dequantize_per_channel")
    nodes = [{"operator": name, "inputs": [], "weights": [number]} for number, name in enumerate(operators)]
    method = SimpleNamespace(quantize=SimpleNamespace(after_export=True))
    plan: Any = SimpleNamespace(methods={"forward": method})
    lowering: Any = {"graphs": {"forward": {"nodes": nodes, "blocks": [], "weights": weights}}}
    found = reached.find(plan, lowering)
    assert found is not None
    [row] = found["in_floats"]
    assert row["weights"] == "net.*.weight"
    assert "call it once, with the inputs in one batch" in row["why"]


def test_a_weight_that_an_entry_names_and_does_not_take_belongs_to_no_linear_layer() -> None:
    weight = {"name": "gate.weight", "dtype": "float32", "shape": [4, 4], "bytes": 64, "parameter": True}
    node = {"operator": "aten::linear", "inputs": [], "layer": "gate", "weights": [0]}
    lowering: Any = {"graphs": {"forward": {"nodes": [node], "blocks": [], "weights": [weight]}}}
    for modules, why in {"*": "its layer computes something else", "body.*": "no entry of `torchao`"}.items():
        quantize = Quantize(torchao=(TorchaoEntry(config="8da8w", modules=(modules,)),))
        plan: Any = SimpleNamespace(methods={"forward": SimpleNamespace(quantize=quantize)})
        found = reached.find(plan, lowering)
        assert found is not None
        assert found["in_floats"][0]["why"].startswith(why)
