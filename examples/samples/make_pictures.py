"""Makes the pictures: `python make_pictures.py`. Each has a bright shape on a dark ground, whose kind is its label."""

from pathlib import Path

SIZE, KINDS, OF_KIND = 16, ("bar", "disc", "frame", "stripes"), 3
LIGHT, DARK = (240, 200, 120), (20, 30, 60)


def is_light(kind: str, x: int, y: int) -> bool:
    """Whether a pixel belongs to the shape, relative to its middle."""
    if kind == "bar":
        return abs(x) < 3
    if kind == "disc":
        return x * x + y * y < 30
    if kind == "frame":
        return max(abs(x), abs(y)) == 5
    return y % 4 < 2


for kind in KINDS:
    for number in range(OF_KIND):
        pixels = [
            LIGHT if is_light(kind, column - SIZE // 2 + number, row - SIZE // 2) else DARK
            for row in range(SIZE)
            for column in range(SIZE)
        ]
        content = b"P6\n%d %d\n255\n" % (SIZE, SIZE) + bytes(part for pixel in pixels for part in pixel)
        (Path(__file__).parent / "pictures" / f"{kind}-{number}.ppm").write_bytes(content)
rows = [f"{kind}-{number}.ppm,{KINDS.index(kind)}" for kind in KINDS for number in range(OF_KIND)]
(Path(__file__).parent / "labels.csv").write_text("\n".join(rows) + "\n")
