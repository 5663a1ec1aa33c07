"""Lowers methods one by one and without weights, so that checkpoints and machines share them, and binds them."""
