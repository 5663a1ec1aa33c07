"""Complex numbers and Fourier transforms become real numbers, and compute what PyTorch computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from etbuild import notes
from etbuild.errors import BuildError
from etplugins.upstream import core_operators, fourier
from tests.helpers.runtime import run
from tests.integration.conftest import Build

PATH = ("methods", "forward", "entry")
AS_COMPLEX, AS_REAL = torch.view_as_complex, torch.view_as_real
X = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(2, 640, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A module that computes a function of itself and of its inputs.

    Args:
        function: The function.
        buffers: Buffers of the module.
    """

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, content in buffers.items():
            self.register_buffer(name, content, persistent=False)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def lowerable(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> torch.export.ExportedProgram:
    """The exported module in real numbers."""
    with torch.no_grad():
        program = torch.export.export(module, inputs, strict=False, **options)
    core_operators.make_lowerable(program, PATH)
    return program


def check(function: Callable[..., Any], *inputs: torch.Tensor, **buffers: torch.Tensor) -> torch.export.ExportedProgram:
    """Compares a function in real numbers with the function; also after PyTorch's decompositions."""
    module = Net(function, **buffers).eval()
    expected = module(*inputs)
    program = lowerable(module, *inputs)
    for each in (program, program.run_decompositions()):
        values = [node.meta.get("val") for node in each.graph.nodes]
        assert not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
        found = each.module()(*inputs)
        wanted = AS_REAL(expected.resolve_conj()) if expected.is_complex() else expected
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=max(1e-5 * float(wanted.abs().max()), 1e-6))
    return program


z = AS_COMPLEX
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda _, x: z(x).abs(),
    "add": lambda _, x: z(x) + z(x) * 2,
    "add of a real tensor": lambda _, x: z(x)[0] + x[..., 0],
    "angle": lambda _, x: z(x).angle(),
    "cat": lambda _, x: torch.cat([z(x), z(x).conj()], 1),
    "chunk": lambda _, x: z(x).chunk(2, 1)[1],
    "complex": lambda _, x: torch.complex(x[..., 0], x[..., 1]),
    "conj": lambda _, x: z(x).conj() * z(x),
    "converted": lambda _, x: x.to(torch.complex64) * 1j,
    "divide": lambda _, x: z(x) / (z(x).roll(1, 1) + 3),
    "divide large numbers": lambda _, x: z(x * 1e25) / z(x * 1e25).roll(1, 1),
    "divide by small numbers": lambda _, x: (1 / z(x * 1e-25)) * 1e-25,
    "divide a number": lambda _, x: 2 / (z(x) + 3),
    "einsum": lambda _, x: torch.einsum("bi,bj->ij", z(x), z(x)),
    "exp": lambda _, x: z(x).exp(),
    "flip": lambda _, x: z(x).flip(1),
    "imag": lambda _, x: z(x).imag,
    "index": lambda _, x: z(x)[:, [0, 3]],
    "in place": lambda _, x: (z(x.clone()) * 1).mul_(2j).add_(1),
    "log": lambda _, x: z(x).log(),
    "matmul": lambda _, x: z(x) @ z(x).mT,
    "mean": lambda _, x: z(x).mean(1),
    "multiply numbers": lambda _, x: 2j * (z(x) * 3 - 1j) + 0.5,
    "multiply real": lambda _, x: x[..., 0] * z(x),
    "new": lambda _, x: torch.zeros(3, 8, dtype=torch.complex64) + z(x) + torch.ones_like(z(x)),
    "pad": lambda _, x: nn.functional.pad(z(x), (1, 2)),
    "permute": lambda _, x: z(x).T.reshape(4, 6),
    "polar": lambda _, x: torch.polar(x[..., 0].abs(), x[..., 1]),
    "power": lambda _, x: z(x) ** 2 + z(x) ** 0.5,
    "power of 0": lambda _, x: (z(x) * 0) ** 0,
    "real": lambda _, x: z(x).real - z(x).imag,
    "sgn": lambda _, x: z(x).sgn(),
    "slice": lambda _, x: z(x)[:, 1:7:2],
    "slice assigned": lambda _, x: torch.cat([z(x)], 1).index_put((torch.tensor([0]),), z(x)[1]),
    "split": lambda _, x: z(x).split(3, 1)[2],
    "sqrt": lambda _, x: z(x).sqrt(),
    "stack": lambda _, x: torch.stack([z(x), z(x) * 1j]),
    "subtract": lambda _, x: 1 - z(x) - x[..., 0],
    "sum": lambda _, x: z(x).sum(1, keepdim=True),
    "tensor": lambda _, x: z(x) * torch.tensor([1j, 2.0] * 4),
    "where": lambda _, x: torch.where(x[..., 0] > 0, z(x), z(x) * 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_of_complex_numbers(name: str) -> None:
    check(FUNCTIONS[name], X)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "fft": lambda _, x: torch.fft.fft(x),
    "fft of complex numbers": lambda _, x: torch.fft.fft(torch.fft.fft(x), dim=0),
    "fft2": lambda _, x: torch.fft.fft2(x, norm="ortho"),
    "fftn": lambda _, x: torch.fft.fftn(x.reshape(2, 4, 8, 20), dim=(1, 3)),
    "fftshift": lambda _, x: torch.fft.fftshift(torch.fft.fft(x)),
    "hfft": lambda _, x: torch.fft.hfft(torch.fft.rfft(x)),
    "ifft": lambda _, x: torch.fft.ifft(x * 1j),
    "ifft2": lambda _, x: torch.fft.ifft2(torch.fft.fft2(x) * 2).real,
    "irfft": lambda _, x: torch.fft.irfft(torch.fft.rfft(x) * 1j),
    "irfft of an odd size": lambda _, x: torch.fft.irfft(torch.fft.rfft(x[:, :321]), n=321, norm="forward"),
    "irfft2": lambda _, x: torch.fft.irfft2(torch.fft.rfft2(x)),
    "longer": lambda _, x: torch.fft.rfft(x, n=700).abs(),
    "rfft": lambda _, x: torch.fft.rfft(x),
    "rfft of 1": lambda _, x: torch.fft.rfft(x[:, :1]),
    "rfft of 2": lambda _, x: torch.fft.irfft(torch.fft.rfft(x[:, :2])),
    "rfft of 521": lambda _, x: torch.fft.rfft(x[:, :521]),
    "rfft2": lambda _, x: torch.fft.rfft2(x.reshape(2, 20, 32), norm="backward"),
    "shorter": lambda _, x: torch.fft.rfft(x, n=100),
    "spectral convolution": lambda _, x: torch.fft.irfft(torch.fft.rfft(x, n=1280) * torch.fft.rfft(x.flip(1), n=1280)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_fourier_transforms(name: str) -> None:
    check(TRANSFORMS[name], SOUND)


@pytest.mark.parametrize("size", [2, 3, 64, 400, 512, 513, 1000, 1024, 2048])
def test_sizes_of_transforms_in_float64(size: int) -> None:
    """The matrices are as exact as the dtype."""
    x = torch.randn(2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    program = lowerable(Net(lambda _, x: torch.fft.rfft(x)), x)
    torch.testing.assert_close(program.module()(x), AS_REAL(torch.fft.rfft(x)), rtol=1e-11, atol=1e-10)
    program = lowerable(Net(lambda _, x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])), x)
    torch.testing.assert_close(program.module()(x), x, rtol=1e-11, atol=1e-11)


TWO = torch.randn(2, 2048, 2, generator=torch.Generator().manual_seed(2))
PAIRS: dict[str, Callable[..., Any]] = {
    "forward": lambda _, x: torch.cat([torch.fft.rfft(x[:, :n, 0], norm="forward") for n in (1024, 2048)], 1),
    "ifft": lambda _, x: torch.cat([torch.fft.ifft(z(x[:, :n])) for n in (1024, 2048)], 1),
    "irfft": lambda _, x: torch.cat([torch.fft.irfft(z(x[:, : n // 2 + 1])) for n in (1024, 2048)], 1),
    "ortho": lambda _, x: torch.cat([torch.fft.ifft(z(x[:, :32]), norm="ortho"), torch.fft.ifft(z(x[:, :1024]))], 1),
}


@pytest.mark.parametrize("name", PAIRS)
def test_transforms_with_a_common_factor_keep_their_scales(name: str) -> None:
    function = PAIRS[name]
    expected = function(None, TWO)
    found = lowerable(Net(function), TWO).module()(TWO)
    torch.testing.assert_close(found, AS_REAL(expected) if expected.is_complex() else expected)


@pytest.mark.parametrize("hop", [160, 100, 99])
@pytest.mark.parametrize("center", [True, False])
def test_short_time_transforms(hop: int, center: bool) -> None:
    def spectrogram(self: Any, x: torch.Tensor) -> torch.Tensor:
        settings = {"window": self.window, "center": center, "normalized": hop == 100, "return_complex": True}
        return torch.stft(x, 400, hop, 320, **settings)

    check(spectrogram, SOUND, window=torch.hann_window(320))
    check(lambda self, x: AS_REAL(spectrogram(self, x))[..., 1], SOUND[0], window=torch.hann_window(320))


@pytest.mark.parametrize(
    "settings",
    [
        {"hop_length": 16},
        {"hop_length": 24, "center": True, "length": 640},
        {"hop_length": 32, "win_length": 60, "normalized": True},
        {"hop_length": 16, "onesided": False},
        {"hop_length": 20, "center": False, "ones": True},
    ],
    ids=str,
)
def test_inverse_short_time_transforms(settings: dict[str, Any]) -> None:
    window = torch.ones(64) if settings.pop("ones", False) else torch.hann_window(settings.get("win_length", 64))
    length = settings.pop("length", None)

    def turned(self: Any, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 64, window=self.window, return_complex=True, **settings)
        mask = spectrum.abs().sigmoid()
        return torch.istft(spectrum * mask, 64, window=self.window, length=length, **settings)

    check(turned, SOUND, window=window)
    check(lambda self, x: turned(self, x[0]), SOUND, window=window)


@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_a_window_of_ones_and_the_method_of_a_tensor() -> None:
    def turned(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.stft(64, 16, window=None, return_complex=True).istft(64, 16)

    check(turned, SOUND)


def test_a_number_of_frames_may_be_dynamic() -> None:
    window = torch.hann_window(64)
    module = Net(lambda self, x: torch.stft(x, 64, 16, window=self.window, return_complex=True).abs(), window=window)
    frames = torch.export.Dim("frames", min=8, max=100)
    program = lowerable(module, SOUND, dynamic_shapes=(({1: 16 * frames},),))
    for number in (320, 640, 960):
        x = torch.randn(2, number)
        torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_buffer_of_complex_numbers_is_two_constants() -> None:
    turns = torch.polar(torch.ones(8), torch.arange(8.0))
    program = check(lambda self, x: AS_REAL(z(x) * self.turns), X, turns=turns)
    assert sorted(program.constants) == ["turns_imag", "turns_real"]


def test_buffers_with_similar_names_stay_apart() -> None:
    module = Net(lambda self, x: AS_REAL(z(x) * self.a.b + self.a_b), a_b=torch.full((8,), 2j))
    module.a = nn.Module()
    module.a.register_buffer("b", torch.full((8,), 1j), persistent=False)
    torch.testing.assert_close(lowerable(module, X).module()(X), module(X))


def test_large_transforms_have_small_constants() -> None:
    program = check(lambda _, x: torch.fft.rfft(x, n=1024).abs(), SOUND)
    assert sum(constant.nbytes for constant in program.constants.values()) < 30_000
    several = lambda _, x: torch.fft.rfft(x, n=256).abs() + torch.fft.rfft(x * x, n=256).abs()  # noqa: E731
    assert len(check(several, SOUND).constants) == 1


def test_the_note_says_what_transforms_cost() -> None:
    with notes.collected() as said:
        check(lambda _, x: torch.fft.rfft(x[:, :400]).abs(), SOUND)
    assert said == [
        "`forward`: 1 Fourier transform of 400 points is a product of matrices, with 643 kB of constants and 322 k "
        "multiplications in a call"
    ]


def test_programs_without_complex_numbers_are_left_alone() -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    before = str(program)
    core_operators.make_lowerable(program, PATH)
    assert str(program) == before


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (lambda _, x: torch.linalg.eigvals(x), (torch.eye(4),), "`aten.linalg_eigvals.default` of complex numbers has"),
        (lambda _, x: x.abs(), (z(X),), "the input `inputs_0` is complex, and a program takes real tensors"),
        (lambda _, x: z(x).view(torch.float32) * 1, (X,), "`aten.view.dtype` of complex numbers has"),
        (lambda _, x: torch.pow(x, 1j), (X,), "raises real numbers to complex exponents"),
        (lambda _, x: torch.as_strided(z(x).T * 1, (2, 3), (6, 1)), (X,), "`aten.as_strided.default` of complex"),
        (lambda _, x: torch.fft.fft(x), (torch.ones(4099),), "has 4099 points, a number that is too large and has no"),
    ],
)
def test_what_has_no_form_in_real_numbers_is_named(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], message: str
) -> None:
    with pytest.raises(BuildError, match=re.escape(message)):
        lowerable(Net(function), *inputs)


def test_a_complex_parameter_is_refused() -> None:
    module = Net(lambda self, x: z(x) * self.weight)
    module.weight = nn.Parameter(torch.ones(8, dtype=torch.complex64))
    with pytest.raises(BuildError, match="the parameter `weight` is complex"):
        lowerable(module, X)


def test_writing_to_a_complex_buffer_is_refused() -> None:
    module = Net(lambda self, x: AS_REAL(self.state.add_(z(x))), state=torch.zeros(8, dtype=torch.complex64))
    with pytest.raises(BuildError, match="the method writes to the buffer `state`, which is complex") as raised:
        lowerable(module, X[0])
    assert "keep pairs" in str(raised.value)


def test_a_dynamic_size_is_refused() -> None:
    module, sizes = Net(lambda _, x: torch.fft.rfft(x).abs()), (({1: torch.export.Dim("size", min=8, max=640)},),)
    with pytest.raises(BuildError, match="has a dynamic size") as raised:
        lowerable(module, SOUND, dynamic_shapes=sizes)
    assert "fix the size, or pad to one" in str(raised.value)


def test_the_largest_product_can_be_divided() -> None:
    assert fourier._factors(fourier.LARGEST) is None
    assert fourier._factors(2048) == (32, 64)


MANIFEST = """
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  spectrum: {entry: spectrum, example_inputs: [{shape: [1, 400]}]}
  separate: {entry: separate, example_inputs: [{shape: [1, 640]}]}
  image: {entry: image, example_inputs: [{shape: [1, 2, 16, 16]}]}
"""

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64), persistent=False)
        self.mix = torch.nn.Conv2d(4, 4, 1)
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(4).reshape(4, 4, 1, 1) + 0.25)
            self.mix.bias.zero_()

    def spectrum(self, x):
        return torch.fft.rfft(x)

    def separate(self, x):
        spectrum = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        return torch.istft(spectrum * spectrum.abs().sigmoid(), 64, 16, window=self.window)

    def image(self, x):
        spectrum = torch.fft.rfft2(x, norm="ortho")
        mixed = self.mix(torch.cat([spectrum.real, spectrum.imag], 1)).relu()
        return torch.fft.irfft2(torch.complex(*mixed.chunk(2, 1)), s=(16, 16), norm="ortho")


def create():
    return Net()
"""


def test_programs_compute_transforms(build: Build, tmp_path: Path) -> None:
    built = build(MANIFEST, model=MODEL)
    assert built.code == 0, built.err
    assert "`spectrum`: 1 Fourier transform of 400 points is a product of matrices" in built.err
    space: dict[str, Any] = {}
    exec(MODEL, space)
    net = space["create"]().eval()
    for method, shape in (("spectrum", (1, 400)), ("separate", (1, 640)), ("image", (1, 2, 16, 16))):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            expected = getattr(net, method)(x)
        expected = AS_REAL(expected) if expected.is_complex() else expected
        [[[found]]] = run(built.directory / "net.pte", [[(method, [x])]], tmp_path)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_line_of_the_model_is_named(build: Build) -> None:
    model = MODEL.replace("return torch.fft.rfft(x)", "return torch.linalg.eigvals(x[:, :4] * x[0, :4, None])")
    built = build(MANIFEST, model=model)
    assert built.code == 1
    assert "model.yaml:7:" in built.err
    assert "`aten.linalg_eigvals.default` of complex numbers has no form in real numbers" in built.err
    assert "at model.py:15, in spectrum: `return torch.linalg.eigvals(" in built.err
