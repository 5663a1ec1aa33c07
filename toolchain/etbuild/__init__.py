"""The driver of rules_executorch: a manifest and a PyTorch model become an ExecuTorch program.

`build`, `load` and `open_program` are the interface for notebooks and services, which a plug-in provides. Importing
this package does not import PyTorch.
"""

__all__ = ("Built", "Model", "Page", "Program", "build", "load", "open_program")


def __getattr__(name: str) -> object:
    """Imports the interface when it is used first."""
    if name == "__version__":
        from etbuild.version import VERSION

        return VERSION
    if name not in __all__:
        raise AttributeError(f"module 'etbuild' has no attribute {name!r}")
    from etbuild import plugins

    return plugins.load("python_interface", name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
