"""Scripts of the project. None of them is a part of the driver."""
