"""The documentation as a website: it works from the disk, each version finds the others, and nobody is left out."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild.version import VERSION
from tests.helpers import browser
from tests.helpers.browser import Browser
from tools import site_versions

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".cache/docs/bin/python"
PAGES = (
    "index",
    "project/readme",
    "tutorials/first-program",
    "reference/manifest/model",
    "reference/rules/executorch_program",
)
LARGEST = 2_000_000
"""What a page and the files that it loads may have, in bytes. The index of the search is most of it."""
LOOKS = (("light", 1200), ("dark", 1200), ("light", 390), ("dark", 390))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, with a second version whose only page is empty."""
    if not (ROOT / ".cache/docs/ready").exists():
        pytest.skip("MkDocs is missing: `make docs` fetches it")
    directory = tmp_path_factory.mktemp("site")
    (directory / "0.0.9").mkdir()
    (directory / "0.0.9/index.html").write_text("<!doctype html><title>old</title>")
    command = [str(PYTHON), "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)]
    paths = {"PYTHONPATH": str(ROOT / "toolchain"), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True)
    return directory


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if reason := browser.missing():
        pytest.skip(reason)
    with browser.running() as started:
        yield started


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_by_everybody(site: Path, chromium: Browser, name: str) -> None:
    found = {}
    for scheme, width in LOOKS:
        with chromium.opened(site / VERSION / f"{name}.html", scheme, width) as opened:
            found[scheme, width] = opened.serious()
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found == {look: [] for look in LOOKS}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_and_loads_little(site: Path, chromium: Browser, name: str) -> None:
    with chromium.opened(site / VERSION / f"{name}.html") as opened:
        opened.page.wait_for_function("document.querySelector('[data-md-component=search]')")
        asked = {told for told in opened.told if re.match(r"\w+://", told)}
        assert {told.partition(":")[0] for told in asked} == {"file"}
        html = (site / VERSION / f"{name}.html").read_text("utf-8")
        sizes = [Path(told.removeprefix("file://").partition("?")[0]).stat().st_size for told in asked]
        assert sum(sizes) + len(html) < LARGEST
    assert '<html lang="en"' in html
    assert '<meta name="viewport"' in html
    assert '<meta name="description"' in html
    assert re.search(r"<title>[^<]+</title>", html)


def test_the_search_works_from_the_disk(site: Path, chromium: Browser) -> None:
    with chromium.opened(site / VERSION / "index.html") as opened:
        opened.page.fill(".md-search__input", "executorch_program_test")
        links = opened.page.locator(".md-search-result__link")
        links.first.wait_for(state="attached")
        assert any(
            "executorch_program_test" in link for link in links.evaluate_all("all => all.map((one) => one.href)")
        )


SEARCHED = {
    "stft": "cookbook/sound",
    "yolo": "cookbook/detector",
    "lightning": "checkpoints",
    "latency": "benchmarking",
    "app": "applications",
}


@pytest.mark.parametrize(("word", "page"), SEARCHED.items())
def test_words_of_users_find_the_page(site: Path, chromium: Browser, word: str, page: str) -> None:
    with chromium.opened(site / VERSION / "index.html") as opened:
        opened.page.fill(".md-search__input", word)
        links = opened.page.locator(".md-search-result__link")
        links.first.wait_for(state="attached")
        found = links.evaluate_all("all => all.map((one) => one.href)")
        assert any(f"/{page}.html" in link for link in found), found


def test_a_page_leads_to_the_other_versions(site: Path, chromium: Browser) -> None:
    with chromium.opened(site / VERSION / "reference/manifest/model.html") as opened:
        button = opened.page.locator(".md-version__current")
        assert button.inner_text() == VERSION
        button.focus()
        opened.page.locator(".md-version__link", has_text="0.0.9").click()
        opened.page.wait_for_load_state()
        assert opened.page.title() == "old"


def test_the_front_page_shows_a_build_and_leads_on(site: Path, chromium: Browser) -> None:
    with chromium.opened(site / VERSION / "index.html") as opened:
        assert "$ etbuild build net.yaml -o out\n" in opened.page.locator(".terminal").inner_text()
        cards = opened.page.locator(".grid.cards > ul > li")
        titles = [text.partition("\n")[0] for text in cards.all_inner_texts()]
        assert titles == ["Tutorials", "How-to", "Explanation", "Reference", "Project"]
        assert all(card.locator("a").count() for card in cards.all())


def test_the_newest_version_is_first(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.0-dev", "images"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    site_versions.write(tmp_path)
    assert (tmp_path / "versions.js").read_text() == 'window.etbuildVersions = ["0.10.0", "0.10.0-dev", "0.9.0"];\n'
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
