"""What applications need of a program: the kinds that must load it, and what its inputs and outputs mean."""
