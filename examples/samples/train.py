"""Trains the network on the pictures: `python train.py`. Another machine finds other weights."""

from pathlib import Path

import images
import model
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
torch.manual_seed(0)
rows = [line.split(",") for line in (HERE / "labels.csv").read_text().splitlines()]
pictures = torch.cat([images.load(HERE / "pictures" / name) for name, _ in rows])
labels = torch.tensor([int(label) for _, label in rows])
net = model.create(4)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    noisy = pictures + 0.05 * torch.randn_like(pictures)
    torch.nn.functional.cross_entropy(net(noisy), labels).backward()
    optimizer.step()
print(f"right: {(net(pictures).argmax(1) == labels).sum()} of {len(labels)}")
save_file(net.state_dict(), HERE / "shapes.safetensors")
