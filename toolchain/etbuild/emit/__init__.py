"""The program: `.pte` and `.ptd` files, written and checked."""
