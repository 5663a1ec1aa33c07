"""Refuses what the sources of a model read and no key covers, or notes it, so that nothing is cached by a wrong key."""
