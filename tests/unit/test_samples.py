"""Samples: patterns for files, checks of the section, and how recordings, pictures and agreements are computed."""

from __future__ import annotations

import math
import wave
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from etbuild.errors import InputError
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.key.declared import Inputs
from etbuild.manifest import validate
from etkit.running.testing import agreements
from etplugins.comparison import quantized
from etplugins.model_tests.parts import MEASURES, Agreement
from etplugins.samples import images, reading, sounds
from etplugins.samples.names import matches, names
from etplugins.samples.parts import Image, Samples, Sound

MODEL = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("photos/a.png", "photos/*.png", True),
        ("photos/a.png", "photos/?.png", True),
        ("photos/.a.png", "photos/*.png", False),
        (".hidden/a.png", ".hidden/*.png", True),
        ("photos/cats/a.png", "photos/*.png", False),
        ("photos/cats/a.png", "photos/*/*.png", True),
        ("photos/a.PNG", "photos/*.png", False),
    ],
)
def test_a_star_stands_for_no_slash_and_no_hidden_file(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected


def test_samples_are_sorted_by_name_wherever_the_files_are(tmp_path: Path) -> None:
    for name in ("b.npy", "a.npy", "c.txt"):
        (tmp_path / name).touch()
    declared = Inputs.named({}, {"0.npy": tmp_path / "b.npy"}, [tmp_path])
    assert names("*.npy", (), declared) == ("0.npy", "a.npy", "b.npy")
    assert names("*.npy", (), Given({}, {"z.npy": tmp_path, "y.npy": tmp_path})) == ("y.npy", "z.npy")


def test_a_pattern_that_matches_nothing_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no declared input matches `x/\\*.npy`\n.*looked in: {tmp_path}"):
        names("x/*.npy", ("samples", "x"), Inputs.named({}, {}, [tmp_path]))


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("methods: {forward: {samples: photo}}\nsamples: {photos: {files: '*.npy'}}", "there are no samples `photo`"),
        ("methods: {forward: {samples: photos}}", "there are no samples `photos`"),
        ("methods: {forward: {samples: a}}\nsamples: {a: {files: '*.png'}}", "has an unknown file type"),
        ("methods: {forward: {samples: a}}\nsamples: {a: {files: '**/*.npy'}}", "`**` stands for no folders here"),
        ("methods: {forward: {samples: a}}\nsamples: {a: {files: '../*.npy'}}", "points outside the declared inputs"),
        (
            "methods: {forward: {samples: a}}\nsamples: {a: {files: '*.png', loader: 'm:f', image: {size: [1, 1]}}}",
            "`image` does not go with `loader`",
        ),
        (
            "methods: {forward: {samples: a}}\nsamples: {a: {files: '*.png', image: {size: [1, 1], mean: [1, 2]}}}",
            "2 numbers for 3 channels",
        ),
        ("methods: {forward: {samples: a}}\nsamples: {a: {files: '*.safetensors'}}", "the key `keys` is missing"),
        (
            "methods: {forward: {example_inputs: [{shape: [1]}], quantize: {pt2e: {quantizers: [xnnpack], "
            "calibration: samples}}}}",
            "`calibration: samples` needs `samples` in the method `forward`",
        ),
        (
            "methods: {forward: {samples: a}}\nsamples: {a: {files: '*.npy'}}\nchecks: {agreement: {measure: top1}}",
            "an agreement needs one of",
        ),
        (
            "methods: {forward: {example_inputs: []}}\nchecks: {agreement: {measure: top1, min_mean: 1}}",
            "the key `method` is missing: no method has `samples`",
        ),
    ],
)
def test_wrong_samples_are_named(tmp_path: Path, rest: str, message: str) -> None:
    (tmp_path / "net.yaml").write_text(f"{MODEL}{rest}\n", "utf-8")
    with pytest.raises(InputError) as error:
        validate.load(tmp_path / "net.yaml")
    assert message in str(error.value)


def test_only_metrics_read_labels(tmp_path: Path) -> None:
    from etplugins.model_tests.parts import tests_of

    text = f"{MODEL}methods: {{forward: {{samples: a}}}}\nsamples: {{a: {{files: '*.npy', labels: l.csv}}}}\n"
    metric = "checks: {metric: {factory: 'm:f', samples: a, min: 1}}\n"
    for rest, expected in (("", {"*.npy"}), (metric, {"*.npy", "l.csv"})):
        (tmp_path / "net.yaml").write_text(text + rest, "utf-8")
        tests = tests_of(validate.load(tmp_path / "net.yaml").data, ["forward"])
        assert tests.data_names.keys() == expected


@pytest.mark.parametrize(
    ("files", "labels", "message"),
    [
        (["a/1.npy", "b/1.npy"], b"1.npy,cat\n", "two samples have the name `1.npy`"),
        (["a/1.npy"], b"1.npy,cat\n1.npy,dog\n", "has two labels for `1.npy`: cat and dog"),
        (["a/1.npy"], b"1.npy,\xe9\n", "`l.csv` is not text in UTF-8"),
    ],
)
def test_labels_that_are_not_certain_are_errors(files: list[str], labels: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(labels)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        numpy.save(tmp_path / name, numpy.zeros(2))
    context = StepContext(Inputs({}, {}, [tmp_path]))
    with pytest.raises(InputError, match=message):
        reading.read(Samples(files="*/*.npy", labels="l.csv"), ("samples", "a"), context)


def test_an_exact_sample_hides_no_other_one() -> None:
    assert quantized.problem([math.inf, 20.0]) is None
    assert "SQNR -30.0 dB in the worst of 4 samples" in str(quantized.problem([math.inf, -30.0, -30.0, -30.0]))


def test_a_target_lists_the_files_of_a_pattern(tmp_path: Path) -> None:
    from etbuild.plan.expectations import INPUTS, check_inputs
    from etbuild.plan.plan import from_manifest

    text = f"{MODEL}methods: {{forward: {{samples: a}}}}\nsamples: {{a: {{files: 'in/*.npy'}}}}\n"
    (tmp_path / "net.yaml").write_text(text, "utf-8")
    plan = from_manifest(validate.load(tmp_path / "net.yaml").data)
    listed: dict[str, list[str]] = {attribute: [] for attribute in INPUTS}
    for names_of_target in (["in/0.npy", "in/1.npy"], ["in/"]):
        check_inputs(plan, {**listed, "data": names_of_target})
    with pytest.raises(InputError, match=r"the target does not list `in/\*.npy`"):
        check_inputs(plan, {**listed, "data": ["other/0.npy"]})


def test_a_deleted_sample_touches_its_program(tmp_path: Path) -> None:
    from etbuild.plan.plan import from_manifest
    from etkit.authoring import affected
    from etkit.authoring.changed_files import Changed

    (tmp_path / "model.py").touch()
    (tmp_path / "a.npy").touch()
    text = f"{MODEL}methods: {{forward: {{samples: a}}}}\nsamples: {{a: {{files: '*.npy'}}}}\n"
    (tmp_path / "net.yaml").write_text(text, "utf-8")
    plan = from_manifest(validate.load(tmp_path / "net.yaml").data)
    for changed in ("a.npy", "gone.npy", "gone.txt"):
        found = affected.reasons(plan, tmp_path / "net.yaml", Inputs({}, {}, [tmp_path]), Changed(tmp_path, [changed]))
        assert found == ([changed] if changed.endswith(".npy") else [])


def test_labels_are_in_no_plan(tmp_path: Path) -> None:
    from etbuild.plan.plan import from_manifest

    text = f"{MODEL}methods: {{forward: {{samples: a}}}}\nsamples: {{a: {{files: '*.npy', count: 2, labels: l.csv}}}}\n"
    (tmp_path / "net.yaml").write_text(text, "utf-8")
    plan = from_manifest(validate.load(tmp_path / "net.yaml").data)
    assert plan.to_json()["methods"]["forward"]["samples"] == {"files": "*.npy", "count": 2}  # type: ignore[index]
    assert plan.data_names == {"*.npy": ("methods", "forward", "samples")}
    assert "etplugins.samples" in plan.plugins_of("export") & plan.plugins_of("compare")


def test_pixels_become_numbers_in_the_order_of_the_model() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    usual = images.tensor(pixels, Image((1, 1)))
    assert usual.shape == (1, 3, 1, 1)
    assert usual.flatten().tolist() == pytest.approx([0, 0.2, 1])
    other = images.tensor(pixels, Image((1, 1), colors="bgr", layout="nhwc", mean=(0.5,), deviation=(0.5, 1.0, 0.25)))
    assert other.shape == (1, 1, 1, 3)
    assert other.flatten().tolist() == pytest.approx([1, -0.3, -2])


def test_pictures_need_pillow_only_if_a_manifest_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(InputError, match="needs the package `pillow`"):
        images.reader(Image((1, 1)), ("samples",))


@pytest.mark.parametrize(
    ("width", "content"), [(1, bytes([0, 128, 192])), (2, b"\0\x80\0\0\0\x40"), (3, b"\0\0\x80\0\0\0\0\0\x40")]
)
def test_recordings_are_numbers_between_minus_one_and_one(tmp_path: Path, width: int, content: bytes) -> None:
    file = tmp_path / "a.wav"
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(width)
        opened.setframerate(8000)
        opened.writeframes(content)
    assert sounds.reader(Sound(8000))(file).tolist() == [[-1.0, 0.0, 0.5]]
    assert sounds.reader(Sound(8000, 2))(file).tolist() == [[-1.0, 0.0]]
    assert sounds.reader(Sound(8000, 4))(file).tolist() == [[-1.0, 0.0, 0.5, 0.0]]
    with pytest.raises(ValueError, match="8000 samples per second, not 16000"):
        sounds.reader(Sound(16000))(file)
    with pytest.raises(ValueError, match="1 channel, not 2"):
        sounds.reader(Sound(8000, channels=2))(file)


def agreement(measure: str, **limits: Any) -> Agreement:
    return Agreement(("checks", "agreement"), measure, **limits)


@pytest.mark.parametrize(
    ("measure", "want", "got", "expected"),
    [
        ("cosine", [[1.0, 0.0]], [[2.0, 0.0]], 1.0),
        ("cosine", [[1.0, 0.0]], [[0.0, 3.0]], 0.0),
        ("psnr", [[0.0, 1.0]], [[0.0, 0.9]], 10 * math.log10(1 / 0.005)),
        ("psnr", [[0.0, 1.0]], [[0.0, 1.0]], 100.0),
        ("ssim", [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]], 1.0),
        ("top1", [[1.0, 2.0], [2.0, 1.0]], [[0.0, 5.0], [0.0, 5.0]], 0.5),
        ("top5", [[9.0, *[1.0] * 6]], [[3.0, *[4.0] * 4, 1.0, 1.0]], 1.0),
        ("top5", [[9.0, *[1.0] * 6]], [[1.0, *[4.0] * 6]], 0.0),
        ("argmax", [[[1.0, 0.0], [0.0, 1.0]]], [[[1.0, 1.0], [0.0, 0.0]]], 0.5),
        ("iou", [1.0, 1.0, -1.0], [1.0, -1.0, -1.0], 0.5),
        ("iou", [-1.0], [-1.0], 1.0),
        ("error", [1.0, 2.0], [1.5, 2.5], 0.5),
        ("distance", [[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]], 2.5),
        ("depth", [1.0, 1.0], [1.2, 1.3], 0.5),
    ],
)
def test_measures_have_their_usual_values(measure: str, want: list[Any], got: list[Any], expected: float) -> None:
    measured = agreements.measure_of(agreement(measure))
    assert measured([torch.tensor(want)], [torch.tensor(got)]) == pytest.approx(expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_an_output_without_numbers_reaches_no_limit(measure: str) -> None:
    want = torch.tensor([1.0, 0.0]).repeat(1, 8, 8)
    want = want.mT if measure == "argmax" else want
    limits = {"max_worst": 1e9} if measure in ("error", "distance") else {"min_worst": 0.1}
    for of_model in (want, -want):
        value = agreements.measure_of(agreement(measure))([of_model], [torch.full_like(want, math.nan)])
        assert agreements.judged(agreement(measure, **limits), ["a"], [value])[1], value


@pytest.mark.parametrize("spoiled", [math.inf, -math.inf])
def test_psnr_of_infinite_numbers_is_the_worst(spoiled: float) -> None:
    assert agreements.measure_of(agreement("psnr"))([torch.ones(2)], [torch.tensor([spoiled, 1.0])]) == -math.inf


def test_a_place_without_a_number_is_in_no_union() -> None:
    assert agreements.measure_of(agreement("iou"))([torch.tensor([-1.0, -1.0])], [torch.tensor([math.nan, -1.0])]) == 0


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_psnr_is_known_for_numbers_of_any_size(scale: float) -> None:
    want = torch.tensor([0.0, 1.0], dtype=torch.float64) * scale
    value = agreements.measure_of(agreement("psnr"))([want], [want * 0.9])
    assert value == pytest.approx(10 * math.log10(1 / 0.005))


def test_the_worst_sample_is_the_largest_one_if_less_is_better() -> None:
    names_of_samples, values = ["a", "b", "c"], [0.9, 0.5, 1.0]
    more = agreements.judged(agreement("top1", min_mean=0.7, min_worst=0.6), names_of_samples, values)
    assert more[0].startswith("mean 0.8, worst 0.5 (`b`)")
    assert more[1:] == (["`min_worst` is 0.6"], {"mean": pytest.approx(0.8), "worst": 0.5})
    less = agreements.judged(agreement("error", max_worst=2.0), names_of_samples, values)
    assert less[1:] == ([], {"mean": pytest.approx(0.8), "worst": 1.0})
    both = agreements.judged(agreement("m:ratio", min_worst=0.6, max_worst=1.1), names_of_samples, values)
    assert both[1] == ["`min_worst` is 0.6"]


def test_a_value_that_is_no_number_breaks_each_limit() -> None:
    for limits in ({"min_mean": 0.0}, {"max_worst": 9.0}):
        _, problems, measured = agreements.judged(agreement("cosine", **limits), ["a", "b"], [1.0, math.nan])
        assert problems
        assert math.isnan(measured["worst"])


def test_an_output_that_the_measure_does_not_fit_is_named() -> None:
    measured = agreements.measure_of(agreement("top1", output=1))
    with pytest.raises(InputError, match="there is no output 1: the method has 1"):
        measured([torch.ones(1)], [torch.ones(1)])
    with pytest.raises(InputError, match="which `top1` cannot measure"):
        agreements.measure_of(agreement("top1"))([torch.tensor(1.0)], [torch.tensor(1.0)])
    with pytest.raises(InputError, match="which `argmax` cannot measure"):
        agreements.measure_of(agreement("argmax"))([torch.ones(3)], [torch.ones(3)])
