"""Chooses between programs of one model: variants that qualify, and schemes that `etbuild tune` tries."""
