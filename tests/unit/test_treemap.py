"""The treemaps of a page: weights and blobs by module."""

from __future__ import annotations

from etbuild.results import BlobSizes, BlobWeights
from etkit.inspection.page import treemap
from etkit.inspection.page.treemap import Weight

WEIGHTS = {
    name: Weight(tuple(name.split(".")), size, "read by forward")
    for name, size in {"embed.weight": 400, "layers.0.up": 300, "layers.1.up": 300, "head.bias": 8}.items()
}
NAMES = {"a" * 64: ["embed.weight"], "b" * 64: ["layers.0.up", "layers.0.norm"]}
KNOWN: BlobWeights = {"constants": [[], ["layers.1.gone"]], "named_data": NAMES}


def test_a_blob_has_the_name_and_the_module_of_its_weight() -> None:
    """One of several weights has the name of the first. If none is known, it keeps its digest or its number."""
    blobs = {"a" * 64: 400, "b" * 64: 300, "c" * 64: 300, "head.bias": 8}
    inside: BlobSizes = {"constants": [4, 6], "mutable": [5], "delegates": [9], "named_data": {}}
    found = treemap.blobs(inside, {"weights": blobs}, KNOWN, treemap.modules(WEIGHTS))
    assert {group.name: [cell.name for cell in group.cells] for group in found} == {
        "embed": ["embed.weight"],
        "layers.0": ["layers.0.up"],
        "named data": ["c" * 64],
        "head": ["head.bias"],
        "compiled by backends": ["delegate 0"],
        "constants": ["constant 0"],
        "layers.1": ["layers.1.gone"],
        "initial values": ["state 0"],
    }
    notes = {cell.name: cell.note for group in found for cell in group.cells}
    assert notes["layers.0.up"] == "named data in `weights`, of 2 weights: layers.0.up, layers.0.norm"


def test_a_page_without_graphs_groups_blobs_by_the_names_of_their_weights() -> None:
    inside: BlobSizes = {"constants": [4, 6], "mutable": [], "delegates": [], "named_data": {"b" * 64: 300}}
    groups = treemap.modules(treemap.weights_of_blobs(inside, KNOWN))
    assert {group.name for group in treemap.blobs(inside, {}, KNOWN, groups)} == {"layers.0", "layers.1", "constants"}


def test_a_module_with_more_than_half_of_the_bytes_is_cut_into_its_own() -> None:
    groups = treemap.modules(WEIGHTS)
    assert set(groups.values()) == {"embed", "layers.0", "layers.1", "head"}
    assert len({group.color for group in treemap.layers(WEIGHTS, groups)}) == len(set(groups.values()))


def test_names_for_another_number_of_constants_are_not_used() -> None:
    """A report may be of another program."""
    inside: BlobSizes = {"constants": [4, 6, 8], "mutable": [], "delegates": [], "named_data": {}}
    found = treemap.blobs(inside, {}, KNOWN, treemap.modules(WEIGHTS))
    assert [cell.name for group in found for cell in group.cells] == ["constant 0", "constant 1", "constant 2"]
