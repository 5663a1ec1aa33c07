"""The same tensors have the same digests in any kind of file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from etbuild.model.tensor_bytes import flat_bytes, row_major
from etbuild.model.tensor_digests import tensor_digests


def test_safetensors_and_torch_files_give_the_same_digests(tmp_path: Path) -> None:
    tensors = {
        "float": torch.arange(12.0).reshape(3, 4),
        "bfloat16": torch.zeros(2, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "bool": torch.tensor([True, False]),
        "transposed": torch.arange(12.0).reshape(4, 3).t(),
        "empty": torch.empty(0, 3),
        "one of a column": torch.arange(12.0).reshape(3, 4)[1:2, 2],  # its only dimension has the stride 4
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    save_file(
        {name: tensor.clone(memory_format=torch.contiguous_format).resolve_conj() for name, tensor in tensors.items()},
        tmp_path / "w.safetensors",
    )
    torch.save(tensors, tmp_path / "w.pt")
    made = [tensor_digests(name, tmp_path / name) for name in ("w.safetensors", "w.pt")]
    assert made[0] == made[1]
    assert len(set(made[0].values())) == len(tensors)


def test_bytes_of_tensors_with_any_strides() -> None:
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    views = [numbers[:1, 1:2, 3:], numbers[1, :1, 2], numbers[:, :1], numbers.mT, numbers[0, 0, 0], numbers[:, 3:]]
    views += [torch.ones(1).expand(3), torch.ones(1).as_strided((1,), (96,)), torch.ones(2).as_strided((1, 2), (0, 1))]
    for view in views:
        assert flat_bytes(view).numpy().tobytes() == view.numpy().tobytes()


def test_views_that_negate_are_computed() -> None:
    numbers = torch.arange(4.0)
    for view in (torch._neg_view(numbers), torch.complex(numbers, numbers).conj().imag[:2]):
        assert view.is_neg()
        computed = row_major(view)
        assert torch.equal(computed, view)
        assert not computed.is_neg()
        assert flat_bytes(view).numpy().tobytes() == (-numbers[: len(view)]).numpy().tobytes()


def test_tensors_that_no_module_can_have_are_left_out(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2), "extra": None}
    other = {"sparse": torch.eye(2).to_sparse(), "meta": torch.empty(2, device="meta")}
    other["huge"] = torch.ones(1).expand(1 << 40)
    torch.save({"model": state, "other": other, "step": torch.tensor(1)}, tmp_path / "w.pt")
    assert sorted(tensor_digests("w.pt", tmp_path / "w.pt")) == ["model/weight", "step"]
