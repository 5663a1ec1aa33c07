"""Rotary embeddings of the type `dynamic`, whose frequencies change once a text is longer than the model was made for.

transformers compares the length of a text in Python, which a program cannot. A cache that holds no longer text never
changes the frequencies.
"""

from __future__ import annotations

from typing import Any

_CHANGES, _STAYS = "dynamic", "default"


def keep(model: Any, length: int) -> None:
    """Lets the rotary embeddings of a model keep the frequencies that they have, if no text changes them.

    Args:
        model: The decoder. It is changed in place.
        length: The number of tokens that the cache holds.
    """
    for part in model.modules():
        kinds, least = getattr(part, "rope_type", None), getattr(part, "max_seq_len_cached", None)
        if not isinstance(least, int) or least < length:
            continue
        if isinstance(kinds, str):
            part.rope_type = _kept(kinds)
        elif isinstance(kinds, dict):  # one for each kind of layers
            part.rope_type = {name: _kept(each) for name, each in kinds.items()}


def _kept(kind: Any) -> Any:
    return _STAYS if isinstance(kind, str) and _CHANGES in kind else kind
