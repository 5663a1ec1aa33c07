"""Short-time Fourier transforms and their inverse in operators that a program can have.

PyTorch's decompositions view a tensor with overlapping strides, and add elements up at indices. No backend takes that.

Limit: `spectra`.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

_MOST_PARTS = 64
"""The most parts of a frame that are cut one by one."""


def stft(  # noqa: PLR0913, PLR0917 - as in PyTorch
    tensor: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Like `torch.ops.aten.stft.default`."""
    if align_to_window:
        raise NotImplementedError("align_to_window")
    one = tensor.dim() == 1
    rows = tensor.unsqueeze(0) if one else tensor
    hop = n_fft // 4 if hop_length is None else hop_length
    frames = _frames(rows, n_fft, hop)
    whole = _whole_window(window, win_length, n_fft, tensor)
    frames = frames if whole is None else frames * whole
    norm = "ortho" if normalized else "backward"
    halves = not frames.is_complex() if onesided is None else onesided
    transform = torch.fft.rfft if halves else torch.fft.fft
    spectrum = transform(frames, dim=-1, norm=norm).transpose(1, 2)
    spectrum = spectrum.squeeze(0) if one else spectrum
    return spectrum if return_complex else torch.view_as_real(spectrum)


def centered(  # noqa: PLR0913, PLR0917 - as in PyTorch
    tensor: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Like `torch.ops.aten.stft.center`."""
    if center:
        rows = tensor.view([1] * (3 - tensor.dim()) + list(tensor.shape))
        padded = functional.pad(rows, (n_fft // 2, n_fft // 2), mode=pad_mode)
        tensor = padded.view(*tensor.shape[:-1], padded.shape[-1])
    return stft(tensor, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window)


def istft(  # noqa: PLR0913, PLR0917 - as in PyTorch
    input: torch.Tensor,  # noqa: A002 - the name in PyTorch
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """Like `torch.ops.aten.istft.default`, but does not look whether the window leaves gaps: no program could."""
    if not input.is_complex():
        raise RuntimeError("istft requires a complex-valued input tensor")
    one = input.dim() == 2
    spectrum = (input.unsqueeze(0) if one else input).transpose(1, 2)
    hop = n_fft // 4 if hop_length is None else hop_length
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = torch.fft.ifft(spectrum, dim=-1, norm=norm)
    else:
        frames = torch.fft.irfft(spectrum, n=n_fft, dim=-1, norm=norm)
    whole = _whole_window(window, win_length, n_fft, frames)
    if whole is None:
        whole = torch.ones(n_fft, dtype=frames.real.dtype if return_complex else frames.dtype, device=input.device)
    number = frames.shape[1]
    sound = _overlapped(frames * whole, hop)
    weight = _overlapped((whole * whole).expand(1, number, n_fft), hop)
    total = n_fft + hop * (number - 1)
    start = n_fft // 2 if center else 0
    whole_end = total - n_fft // 2 if center else total
    end = whole_end if length is None else start + length
    kept = min(end, total) if isinstance(total, int) else end
    sound = sound[:, start:kept] / weight[:, start:kept]
    if isinstance(total, int) and end > total:
        sound = functional.pad(sound, (0, end - total))
    return sound.squeeze(0) if one else sound


def _whole_window(
    window: torch.Tensor | None, length: int | None, n_fft: int, like: torch.Tensor
) -> torch.Tensor | None:
    """The window with zeros on both sides, as long as a frame; None if it is 1 everywhere."""
    length = n_fft if length is None else length
    if window is None and length == n_fft:
        return None
    if window is None:
        window = torch.ones(length, dtype=like.dtype, device=like.device)
    left = (n_fft - length) // 2
    return window if length == n_fft else functional.pad(window, (left, n_fft - length - left))


def _frames(rows: torch.Tensor, n_fft: int, hop: int) -> torch.Tensor:
    """Overlapping parts of rows: [rows, frames, n_fft]."""
    part = math.gcd(n_fft, hop)
    parts, step = n_fft // part, hop // part
    number = (rows.shape[-1] - n_fft) // hop + 1
    if parts > _MOST_PARTS:
        return rows.unfold(-1, n_fft, hop)
    cut_parts = parts + step * (number - 1)
    cut = rows[..., : cut_parts * part].reshape(*rows.shape[:-1], cut_parts, part)
    if parts == 1:
        return cut
    last = step * (number - 1) + 1
    return torch.cat([cut[:, first : first + last : step] for first in range(parts)], -1)


def _overlapped(frames: torch.Tensor, hop: int) -> torch.Tensor:
    """The sum of overlapping frames: [rows, samples]."""
    rows, number, n_fft = frames.shape
    if n_fft % hop or n_fft // hop > _MOST_PARTS:
        columns = frames.transpose(1, 2)
        total = n_fft + hop * (number - 1)
        return functional.fold(columns, (1, total), (1, n_fft), stride=(1, hop)).reshape(rows, total)
    parts = n_fft // hop
    cut = frames.unflatten(-1, (parts, hop))
    shifted = [functional.pad(cut[:, :, index], (0, 0, index, parts - 1 - index)) for index in range(parts)]
    total = shifted[0]
    for each in shifted[1:]:
        total = total + each
    return total.flatten(1)
