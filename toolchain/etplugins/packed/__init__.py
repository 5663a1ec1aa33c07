"""Checkpoints whose weights are packed: integers with scales, or small floats, in several tensors for each weight."""
