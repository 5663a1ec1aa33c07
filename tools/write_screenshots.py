"""Writes the pictures of pages in docs/images: `make screenshots`.

    python -m tools.write_screenshots

It builds examples with the command line and opens their pages in Chromium, with light and with dark colours.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers import browser

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = {
    "tiny_lm": "tiny_lm/model.yaml",
    "vision": "vision/model.yaml",
    "spotter_int8": "quantized/int8.yaml",
    "llama": "huggingface/llama.yaml",
}
SECTIONS = {"tiny_lm": "graph", "vision": "bytes", "spotter_int8": "quantization", "llama": "memory"}
"""For each picture, the section at its top."""


def main() -> None:
    """Writes the pictures."""
    if reason := browser.missing():
        sys.exit(reason)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser.running() as started:
        for name, manifest in EXAMPLES.items():
            source = str(ROOT / "examples" / manifest)
            command = [sys.executable, "-m", "etbuild", "build", source, "-o", folder, "--html"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            page = Path(folder, f"{name}.report.html")
            for scheme in ("light", "dark"):
                with started.opened(page, scheme, width=1000) as opened:
                    opened.page.evaluate(f"document.getElementById('{SECTIONS[name]}').scrollIntoView()")
                    opened.page.wait_for_timeout(200)  # the graph is drawn in several frames
                    opened.page.screenshot(path=str(IMAGES / f"page-{name}-{scheme}.png"))
                said = opened.told or "no message"
                print(f"{name}, {scheme}: {page.stat().st_size:,} bytes, {said}")


if __name__ == "__main__":
    main()
