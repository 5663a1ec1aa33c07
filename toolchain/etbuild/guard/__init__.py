"""Runs the code of models in processes that end, and has a plug-in watch what it reads."""
