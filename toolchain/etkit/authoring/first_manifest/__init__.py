"""Writes the first manifest and BUILD target of a model: of a folder of Hugging Face, or of a factory."""

from etkit.authoring.first_manifest.factory import of_factory
from etkit.authoring.first_manifest.first import First, renamed
from etkit.authoring.first_manifest.folder import of_huggingface

__all__ = ["First", "of_factory", "of_huggingface", "renamed"]
