"""Finds duplicate weights from what delegates read and store."""

from __future__ import annotations

from etbuild.lower import weight_sharing
from etbuild.lower.weight_sharing import WeightReader


def xnnpack(blobs: dict[str, int], **weights: int) -> WeightReader:
    read = {name: (name, size) for name, size in weights.items()}
    return WeightReader("XnnpackBackend", str(sorted(weights)), 100 + sum(blobs.values()), blobs, read)


def inside(program: str, stored: int, **weights: int) -> WeightReader:
    return WeightReader("VendorBackend", program, stored, {}, {name: (name, size) for name, size in weights.items()})


def portable(**weights: int) -> WeightReader:
    return WeightReader("", "", 0, {}, {name: (name, size) for name, size in weights.items()})


def test_a_common_blob_is_one_copy() -> None:
    found = weight_sharing.measure({"a": [xnnpack({"k": 400}, w=400)], "b": [xnnpack({"k": 400, "l": 8}, w=400, v=8)]})
    assert found == {"expected_bytes": 400, "shared_bytes": 400, "duplicate_bytes": 0, "duplicates": []}


def test_a_blob_has_the_names_of_all_weights_that_it_is_made_of() -> None:
    """The first is the weight that it takes the place of. Equal weights of several methods have one blob."""
    one = WeightReader("XnnpackBackend", "x", 100, {"k": 64}, {}, {"k": {("conv.weight", "a_norm.weight")}})
    other = WeightReader(
        "XnnpackBackend", "y", 100, {"k": 64}, {}, {"k": {("conv.weight",)}, "scale_l": {("z",), ("b",)}}
    )
    own = WeightReader("", "", 0, {}, {}, {"c": {("embed",)}, "d": {("gone",)}})
    keys = ["k", "scale_l", "unknown", "embed"]
    assert weight_sharing.blob_weights({"a": [own, one], "b": [other]}, ["m", "c"], keys) == {
        "constants": [[], ["embed"]],
        "named_data": {"k": ["conv.weight", "a_norm.weight"], "scale_l": ["b", "z"]},
    }


def test_a_weight_in_two_packings_is_there_twice() -> None:
    found = weight_sharing.measure({"a": [xnnpack({"k": 400}, w=400)], "b": [xnnpack({"l": 400}, w=400)]})
    assert found["duplicate_bytes"] == 400
    assert found["duplicates"] == [
        {"weight": "w", "bytes": 400, "copies": 2, "readers": ["XnnpackBackend of `a`", "XnnpackBackend of `b`"]}
    ]


def test_a_blob_that_is_shared_does_not_hide_one_of_its_size_that_is_not() -> None:
    one, other = xnnpack({"k": 400, "l": 400}, w=400, v=400), xnnpack({"k": 400, "m": 400}, w=400, v=400)
    assert weight_sharing.measure({"a": [one], "b": [other]})["shared_bytes"] == 0


def test_weights_that_only_one_method_reads_are_not_lost_sharing() -> None:
    one, other = xnnpack({"k": 400, "l": 400}, w=400, v=400), xnnpack({"k": 400, "m": 400}, w=400, u=400)
    assert weight_sharing.measure({"a": [one], "b": [other]})["duplicate_bytes"] == 0


def test_what_a_backend_folds_into_another_weight_is_not_missed() -> None:
    """A BatchNorm's vectors have no blobs of their own."""
    folded = xnnpack({"k": 400, "l": 16}, w=400, bias=16, gamma=16, mean=16)
    assert weight_sharing.measure({"a": [folded], "b": [folded]})["duplicate_bytes"] == 0


def test_a_weight_that_is_packed_to_another_size_is_shared_by_any_common_blob() -> None:
    one, other = xnnpack({"k": 50}, w=400), xnnpack({"k": 50, "m": 16}, w=400, v=16)
    assert weight_sharing.measure({"a": [one], "b": [other]})["shared_bytes"] == 400


def test_what_is_inside_a_delegate_is_a_copy_by_its_share_of_the_delegate() -> None:
    """Half precision halves the size. Equal compiled bytes are written once."""
    a, b, same = inside("x", 200, w=300, v=100), inside("y", 1000, w=300), inside("y", 1000, w=300)
    found = weight_sharing.measure({"a": [a], "b": [b], "c": [same]})
    assert found["duplicate_bytes"] == 150
    assert found["duplicates"][0]["readers"] == ["VendorBackend of `a`", "VendorBackend of `b`, `c`"]
    assert found["expected_bytes"] == 300


def test_two_backends_may_have_one_blob() -> None:
    vulkan = WeightReader("VulkanBackend", "v", 500, {"k": 400}, {"w": ("w", 400)})
    assert weight_sharing.measure({"a": [vulkan], "b": [xnnpack({"k": 400}, w=400)]})["shared_bytes"] == 400


def test_backends_and_portable_operators_do_not_share() -> None:
    found = weight_sharing.measure({"a": [portable(w=64)], "b": [portable(w=64), xnnpack({"k": 64}, w=64)]})
    assert (found["duplicate_bytes"], found["duplicates"][0]["copies"]) == (64, 2)


def zeros(*names: str, size: int = 64) -> dict[str, tuple[str, int]]:
    return {weight_sharing.identity("0", name): (name, size) for name in names}


def test_two_weights_of_zeros_are_two_weights() -> None:
    one, other = (
        WeightReader("", "", 0, {}, zeros("a")),
        WeightReader("XnnpackBackend", "x", 100, {"k": 64}, zeros("b")),
    )
    found = weight_sharing.measure({"a": [one], "b": [other]})
    assert found == {"expected_bytes": 0, "shared_bytes": 0, "duplicate_bytes": 0, "duplicates": []}


def test_one_weight_of_zeros_may_be_there_twice() -> None:
    one, other = (
        WeightReader("", "", 0, {}, zeros("a", "c")),
        WeightReader("XnnpackBackend", "x", 200, {"k": 64}, zeros("a", "b")),
    )
    found = weight_sharing.measure({"a": [one], "b": [other]})
    assert [(each["weight"], each["bytes"]) for each in found["duplicates"]] == [("a", 64)]


def test_blobs_are_counted_by_content_under_all_names() -> None:
    """Both zeros are one blob. It does not count as another weight of the same size that is not shared."""
    one = WeightReader("XnnpackBackend", "x", 200, {"z": 64, "k": 64}, {"w": ("w", 64), **zeros("a", "b")})
    other = WeightReader("XnnpackBackend", "y", 200, {"z": 64, "l": 64}, {"w": ("w", 64), **zeros("a")})
    assert weight_sharing.measure({"a": [one], "b": [other]})["shared_bytes"] == 0
