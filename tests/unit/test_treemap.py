"""The treemaps of a page: weights and blobs by module."""

from __future__ import annotations

from etkit.page import treemap
from etkit.page.treemap import Weight

WEIGHTS = {
    name: Weight(tuple(name.split(".")), size, "read by forward")
    for name, size in {"embed.weight": 400, "layers.0.up": 300, "layers.1.up": 300, "head.bias": 8}.items()
}


def test_a_blob_has_the_name_of_the_weight_of_its_size() -> None:
    """If several fit, it has the module of all of them. If none fits, it keeps its digest."""
    blobs = {"a" * 64: 400, "b" * 64: 300, "c" * 64: 77}
    modules = treemap.modules(WEIGHTS)
    held = treemap.fitting({"weights": blobs}, WEIGHTS)
    inside = {"constants": [], "mutable": [], "delegates": [9], "named_data": {}}
    found = treemap.blobs(inside, {"weights": blobs}, held, modules)  # type: ignore[arg-type]
    names = {cell.name for group in found for cell in group.cells}
    assert names == {"embed.weight", "in layers", "c" * 64, "delegate 0"}


def test_a_module_with_more_than_half_of_the_bytes_is_cut_into_its_own() -> None:
    groups = treemap.modules(WEIGHTS)
    assert set(groups.values()) == {"embed", "layers.0", "layers.1", "head"}
    assert len({group.color for group in treemap.layers(WEIGHTS, groups)}) == len(set(groups.values()))
