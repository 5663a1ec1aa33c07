"""Generates text with a language model: tokenizers, chat templates, and conversations."""
