"""Refuses or notes reads of a model's sources that no key covers, so that nothing is cached by a wrong key."""
