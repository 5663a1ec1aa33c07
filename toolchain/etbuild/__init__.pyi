from etkit.local.in_memory import build as build
from etkit.local.interface import Built as Built
from etkit.local.interface import Model as Model
from etkit.local.interface import Page as Page
from etkit.local.interface import Program as Program
from etkit.local.interface import load as load
from etkit.local.interface import open_program as open_program

__all__ = ("Built", "Model", "Page", "Program", "build", "load", "open_program")
__version__: str
