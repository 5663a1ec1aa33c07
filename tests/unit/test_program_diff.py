"""The differences of two programs in words: the total comes first, and blobs without names are folded."""

from __future__ import annotations

from etkit.inspection import program_diff


def test_the_total_is_compared_only_if_both_are_known() -> None:
    before = {"of": "a program", "total": {program_diff.TOTAL: 104_000}, "artifacts": {"the file": {"size": 12_900}}}
    after = {"of": "a program", "total": {program_diff.TOTAL: 41_100}, "artifacts": {"the file": {"size": 41_100}}}
    lines = list(program_diff.text(program_diff.compare(before, after)))
    assert lines[:2] == ["total:", "  bytes of .pte and .ptd: 104.0 kB -> 41.1 kB (-62,900 bytes)"]
    del after["total"]
    assert [change.path[0] for change in program_diff.compare(before, after)] == ["artifacts"]


def test_blobs_that_have_digests_in_place_of_names_are_folded() -> None:
    before = {"of": "a program", "blobs": {"in the program": {"a" * 64: 100, "b" * 64: 200, "cos": 8}}}
    after = {"of": "a program", "blobs": {"in the program": {"c" * 64: 50, "cos": 16}}}
    assert list(program_diff.text(program_diff.compare(before, after))) == [
        "blobs:",
        "  in the program cos: 8 B -> 16 B (+8 bytes)",
        "  in the program: 2 blobs removed, 300 B",
        "  in the program: 1 blob added, 50 B",
    ]


def test_blobs_have_the_names_of_their_weights_if_one_side_knows_them() -> None:
    """Blobs of one weight are compared with each other. Those that only have other content are one line."""
    names = {"a" * 64: ["up"], "b" * 64: ["down"], "scale_" + "c" * 64: ["up"], "d" * 64: ["head", "tied"]}
    before = {"of": "a build", "blobs": {"in the program": {"a" * 64: 100, "b" * 64: 200, "scale_" + "c" * 64: 4}}}
    later = {"e" * 64: ["up"], "f" * 64: ["down"]}
    after = {
        "of": "a build",
        "blobs": {"in the program": {"e" * 64: 100, "f" * 64: 250, "scale_" + "c" * 64: 4, "d" * 64: 8}},
    }
    for side, known in ((before, names), (after, {**names, **later})):
        side["names"] = {"constants": [], "named_data": known}
    assert list(program_diff.text(program_diff.compare(before, after))) == [
        "blobs:",
        "  in the program down: 200 B -> 250 B (+50 bytes)",
        "  in the program head and 1 more: added, 8 B",
        "  in the program: 1 blob with other content, 100 B: up",
    ]
    listed = program_diff.as_json(program_diff.compare(before, after))
    assert listed[-1]["path"] == ["blobs", "in the program", "f" * 64]
    assert [each.pop("weights") for each in listed] == [["up"], ["down"], ["head", "tied"], ["up"], ["down"]]
    del after["names"]
    assert "in the program: 2 blobs added, 350 B" in "\n".join(program_diff.text(program_diff.compare(before, after)))
    del before["names"]
    assert program_diff.as_json(program_diff.compare(before, after)) == listed  # the paths need no report
