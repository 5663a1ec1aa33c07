"""Emit: writes the program's `.pte` and `.ptd` files, and checks them."""
