"""Verbs that choose between programs."""
