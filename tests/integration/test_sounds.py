"""`etbuild run ... -o FILE.wav` writes one sound, or says why it cannot."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge

from etbuild.cli import main
from etbuild.errors import InputError
from etkit.running.verbs import run


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a method that has the name of the rate, but takes an input."""
    path = tmp_path_factory.mktemp("sounds") / "net.pte"
    exported = torch.export.export(Twice(), (torch.ones(1, 4),))
    path.write_bytes(to_edge({"forward": exported, "get_sampling_rate": exported}).to_executorch().buffer)
    return path


def test_only_a_sound_asks_for_its_rate(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", str(program), "forward"]) == 0
    assert main.main(["run", str(program), "forward", "-o", str(tmp_path / "out.safetensors")]) == 0
    assert main.main(["run", str(program), "forward", "-o", str(tmp_path / "out.wav")]) == 2
    assert "a sound needs the constant method `get_sampling_rate`: an integer above 0" in capfd.readouterr().err
    assert not (tmp_path / "out.wav").exists()


@pytest.mark.parametrize(("shape", "channels"), [((4,), 1), ((1, 4), 1), ((1, 2, 4), 2)])
def test_a_sound_has_its_channels_and_its_rate(shape: tuple[int, ...], channels: int, tmp_path: Path) -> None:
    run._write_sound(tmp_path / "out.wav", torch.linspace(-2, 2, 4 * channels).reshape(shape), 8000)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (8000, 4, channels)
        numbers = torch.frombuffer(bytearray(file.readframes(4)), dtype=torch.int16)
    assert (int(numbers.min()), int(numbers.max())) == (-32767, 32767)


@pytest.mark.parametrize(
    ("sound", "rate", "said"),
    [
        (torch.ones(4), 0, "an integer above 0"),
        (torch.ones(4), -1, "an integer above 0"),
        (torch.ones(4), True, "an integer above 0"),
        (torch.ones(4), 8000.0, "an integer above 0"),
        (torch.ones(4), None, "an integer above 0"),
        (torch.ones(4), 2**32, "no WAV file holds the output [4] with 4294967296 samples in a second"),
        (torch.ones(1, 2**16, 1), 8000, "no WAV file holds the output [1, 65536, 1]"),
        (torch.ones(1, 0), 8000, "[1, 0] is not one sound"),
        (torch.ones(1, 0, 4), 8000, "[1, 0, 4] is not one sound"),
        (torch.ones(2, 4), 8000, "[2, 4] is not one sound"),
        (torch.ones(2, 1, 4), 8000, "[2, 1, 4] is not one sound"),
        (torch.ones(1, 1, 1, 4), 8000, "[1, 1, 1, 4] is not one sound"),
        (torch.tensor(1.0), 8000, "[] is not one sound"),
        (torch.tensor([0.5, float("nan")]), 8000, "NaN or infinity"),
        (torch.tensor([0.5, float("-inf")]), 8000, "NaN or infinity"),
        (torch.ones(4, dtype=torch.int64), 8000, "needs an output of floats"),
        (0.5, 8000, "needs an output of floats"),
        (None, 8000, "needs an output of floats"),
    ],
)
def test_what_is_no_sound_is_refused(sound: object, rate: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        run._write_sound(tmp_path / "out.wav", sound, rate)
    assert said in str(error.value)
    assert not (tmp_path / "out.wav").exists()
