"""Finds the known word that a misspelled word means."""

def _distance(one, other):
    """Returns how many letters have to be added, removed or replaced to turn one word into the other."""
    row = range(len(other) + 1)
    for number, letter in enumerate(one.elems()):
        before, row = row, [number + 1]
        for place, wanted in enumerate(other.elems()):
            row.append(min(before[place + 1] + 1, row[place] + 1, before[place] + (0 if letter == wanted else 1)))
    return row[-1]

def nearest(word, known):
    """Returns the known word that is most like another one.

    Args:
      word: string.
      known: list of string.

    Returns:
      string; None if less than two thirds of the letters are the same.
    """
    near = sorted([(_distance(word.lower(), each), each) for each in known])
    return near[0][1] if near and near[0][0] * 3 <= len(near[0][1]) else None
