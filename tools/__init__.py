"""Scripts of the project. They are not part of the driver."""
