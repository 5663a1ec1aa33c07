"""The page of a program in a real browser: everything is there, nothing of a file runs, and it is drawn in a second."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.results import MethodGraph
from etkit.inspection.page import content, render, treemap
from tests.helpers import browser
from tests.helpers.browser import Browser

from .conftest import Build, Outcome

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.table = torch.nn.Embedding(10, 8)
        self.register_buffer("seen", torch.zeros(1))

    def look(self, tokens):
        return self.linear(self.table(tokens)).relu()

    def forward(self, x):
        self.seen.add_(1)
        return self.linear(x).relu() + self.seen, torch.cumsum(x, 1)

def create():
    return Net()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [2, 8]}]}
  look: {example_inputs: [{shape: [3], dtype: int64, fill: zeros}]}
defaults: {partitioners: [xnnpack]}
constant_methods: {limit: 7}
"""
DOCS = Path(__file__).parents[2] / "docs"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} \x1b[31m\u202e '\"&"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if reason := browser.missing():
        pytest.skip(reason)
    with browser.running() as started:
        yield started


@pytest.fixture
def built(build: Build) -> Outcome:
    done = build(MANIFEST, "--html", model=MODEL)
    assert done.code == 0, done.err
    return done


def drawn(opened: browser.Opened) -> None:
    """Draws also what is not in sight, as before printing."""
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")


def hostile(graph: MethodGraph) -> MethodGraph:
    """The graph with a hostile text in the place of each text."""
    nodes = [
        {**node, "operator": HOSTILE, "name": HOSTILE, "layer": HOSTILE, "why_not": [HOSTILE]}
        for node in graph["nodes"]
    ]
    return {**graph, "nodes": nodes, "blocks": [{**block, "backend": HOSTILE} for block in graph["blocks"]]}  # type: ignore[typeddict-item]


def page_of(path: Path, shown: content.PageContent) -> Path:
    path.write_bytes(render.render(shown))
    return path


def program(graph: MethodGraph, name: str = "forward", **fields: Any) -> content.PageContent:
    """A page's content with one method that has a graph."""
    values: list[Any] = [{"dtype": "float32", "shape": [2, 8], "dynamic": False}]
    sizes: Any = {"constants": [4], "mutable": [], "delegates": [8], "named_data": {name: 16}}
    method: Any = {"inputs": values, "outputs": values, "operators": {}, "delegates": {name: 1}, "memory": [64]}
    tensor: Any = {"arena": 1, "offset": 0, "bytes": 64, "first": 0, "last": 2, "of": name}
    facts: Any = {"kind": "program", "file": f"{name}.pte", "size": 9, "sha256": "0" * 64, "methods": {name: method}}
    facts.update({"bytes": sizes, "external_keys": [name]})
    shown = content.of_program(facts, {name: graph}, {name: {"instructions": 3, "tensors": [tensor]}})
    return replace(shown, **fields)


CHAIN: MethodGraph = {
    "nodes": [
        {"operator": "input", "inputs": []},
        {"operator": "aten::sin", "inputs": [0], "block": 0},
        {"operator": "aten::cos", "inputs": [1]},
        {"operator": "output", "inputs": [2]},
    ],
    "blocks": [{"backend": "XnnpackBackend", "bytes": 8}],
    "weights": [],
}


def test_the_call_that_a_page_shows_can_be_pasted(
    cli_built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a program with named data: without its file, ExecuTorch's runtime would crash."""
    path = cli_built("tiny_lm")
    page = path.with_suffix(".report.html").read_text("utf-8")
    monkeypatch.chdir(path.parent)
    for method in ("decode", "prefill"):
        shown = re.search(f'aria-label="A call of {method}">(.*?)</pre>', page, re.DOTALL)
        assert shown
        *statements, call = ast.parse(html.unescape(shown[1])).body
        assert isinstance(call, ast.Expr)
        names: dict[str, object] = {}
        exec(compile(ast.Module(statements, []), "page", "exec"), names)
        (scores,) = eval(compile(ast.Expression(call.value), "page", "eval"), names)
        assert scores.shape == (1, 256)


def test_the_page_of_a_build_shows_everything_in_both_colours(built: Outcome, chromium: Browser) -> None:
    path = built.directory / "net.report.html"
    assert path.stat().st_size < 1_500_000
    for scheme in ("light", "dark"):
        with chromium.opened(path, scheme) as opened:
            page = opened.page
            assert opened.told == []
            assert page.locator(".card h3").all_inner_texts() == ["forward", "look"]
            assert "(float32[2, 8])" in page.locator(".card .signature").first.inner_text()
            drawn(opened)
            assert page.locator("#canvas canvas").count() > 0
            assert int(page.locator("#canvas").get_attribute("data-nodes")) > 4
            assert page.locator(".treemap[data-tree=layers] [title*='read by forward and look']").count() == 2
            assert page.locator(".treemap[data-tree=layers] [role=option]").count() >= 3
            colors = page.locator(".treemap [role=option]").evaluate_all("found => found.map(each => each.className)")
            assert len(set(colors)) >= 2  # modules differ
            assert page.locator("#treemap-layers .group").all_inner_texts() == ["table", "linear"]
            summary = page.locator(".summary").inner_text()
            assert "total size" in summary
            assert re.search(r"delegated\n+\d+ %", summary)
            assert page.locator(".timeline rect.state").count() >= 1
            assert built.json("net.index.json")["key"] in page.locator("#program").inner_text()
            fallback = page.locator("#graph table").first.inner_text()
            assert "aten::cumsum" in fallback
            assert "model.py:15, in forward: `return self.linear(x).relu() + self.seen, torch.cumsum(x, 1)`" in fallback
            assert opened.serious() == []
            page.emulate_media(media="print")
            assert not page.locator("#search").is_visible()
            assert page.locator("#canvas canvas").first.is_visible()
            assert opened.told == []


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("tiny_lm", ["graph", "bytes", "memory"]),
        ("vision", ["graph", "bytes", "memory"]),
        ("spotter_int8", ["graph", "bytes", "memory", "quantization"]),
        ("llama", ["graph", "bytes", "memory"]),
    ],
)
def test_the_pages_of_examples_have_no_serious_fault(
    cli_built: Callable[[str], Path], chromium: Browser, name: str, sections: list[str]
) -> None:
    """Their pictures are in the documentation."""
    path = cli_built(name).with_name(f"{name}.report.html")
    assert path.stat().st_size < 1_500_000
    for scheme in ("light", "dark"):
        with chromium.opened(path, scheme) as opened:
            drawn(opened)
            for section in sections:
                assert opened.page.locator(f"#{section}").is_visible()
            assert (opened.told, opened.serious()) == ([], [])
        picture = DOCS / f"images/page-{name}-{scheme}.png"
        assert 0 < picture.stat().st_size < 150_000


def test_the_graph_is_searched_and_moved_with_the_keyboard(built: Outcome, chromium: Browser) -> None:
    with chromium.opened(built.directory / "net.report.html") as opened:
        page = opened.page
        page.locator("#search").focus()
        page.keyboard.type("aten::cumsum")
        assert page.locator("#found").inner_text().startswith("1 of ")
        page.locator("#results button").focus()
        page.keyboard.press("Enter")
        assert "model.py:15" in page.locator("#details").inner_text()
        page.locator("#canvas").focus()
        drawn(opened)
        before = page.locator("#canvas").screenshot()
        page.keyboard.press("ArrowUp")
        page.wait_for_timeout(100)
        assert page.locator("#canvas").screenshot() != before
        page.locator("#method").select_option(label="look")
        page.locator("#search").fill("embedding")
        assert page.locator("#results button").count() >= 1
        assert opened.told == []


def test_the_page_of_any_file_and_what_differs(built: Outcome, build: Build, tmp_path: Path, chromium: Browser) -> None:
    other = build(MANIFEST, model=MODEL.replace("cumsum(x, 1)", "sin(x)"))
    only = tmp_path / "only.pte"
    only.write_bytes(built.read("net.pte"))
    page = tmp_path / "only.html"
    assert main.main(["inspect", str(only), "--html", str(page), "--against", str(other.directory / "net.pte")]) == 0
    with chromium.opened(page) as opened:
        differing = opened.page.locator("#difference").inner_text()
        assert "forward: operator aten::cumsum.out\t0 -> 1" in differing.replace("\u200b", "")
        drawn(opened)
        assert "XnnpackBackend" in opened.page.locator("#legend").inner_text()
        assert (opened.told, opened.serious()) == ([], [])


def test_no_text_of_a_file_runs_or_hides(tmp_path: Path, chromium: Browser) -> None:
    shown = program(
        hostile(CHAIN),
        HOSTILE,
        notes=[HOSTILE],
        checks=[(HOSTILE, "1", "2")],
        constants={HOSTILE: HOSTILE},
        provenance={HOSTILE: {HOSTILE: HOSTILE}},
        summary=[(HOSTILE, HOSTILE, HOSTILE)],
        layers=[treemap.Group(HOSTILE, 0, 9, [treemap.Cell(HOSTILE, HOSTILE, 9, HOSTILE)])],
        difference=content.Difference(HOSTILE, {HOSTILE: [(HOSTILE, HOSTILE)]}),
    )
    written = page_of(tmp_path / "hostile.html", shown)
    text = written.read_text("utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<img" not in text
    with chromium.opened(written) as opened:
        drawn(opened)
        opened.page.locator("#search").fill("alert")
        opened.page.locator("#results button").first.click()
        assert "<img src=x onerror=alert(2)>" in opened.page.locator("#details").inner_text()
        assert "{{7*7}}" in opened.page.locator("h1").inner_text()
        assert opened.told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_in_its_width(built: Outcome, chromium: Browser, scheme: str) -> None:
    with chromium.opened(built.directory / "net.report.html", scheme, width=390) as opened:
        drawn(opened)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert (opened.told, opened.serious()) == ([], [])


def test_a_graph_of_5000_operators_is_drawn_and_searched(tmp_path: Path, chromium: Browser) -> None:
    count = content.MOST_NODES
    nodes: list[Any] = [{"operator": "input", "inputs": []}]
    for number in range(1, count - 1):
        inputs = sorted({number - 1, max(0, number - 7)})
        nodes.append({"operator": "aten::add.out", "inputs": inputs, "layer": f"layers.{number // 40}"})
    nodes.append({"operator": "output", "inputs": [count - 2]})
    written = page_of(tmp_path / "large.html", program({"nodes": nodes, "blocks": [], "weights": []}))
    with chromium.opened(written) as opened:
        drawn(opened)
        assert opened.page.locator("#canvas").get_attribute("data-nodes") == str(count)
        opened.page.locator("#search").fill("layers.99")
        assert opened.page.locator("#found").inner_text() == f"40 of {count} operators"
        assert opened.told == []
    assert written.stat().st_size < 1_500_000


def test_a_larger_graph_is_drawn_as_blocks() -> None:
    nodes: list[Any] = [{"operator": "input", "inputs": []}]
    nodes += [{"operator": "aten::add", "inputs": [number], "block": number // 100} for number in range(6000)]
    blocks: list[Any] = [{"backend": "XnnpackBackend", "bytes": 1}] * 60
    drawn = program({"nodes": nodes, "blocks": blocks, "weights": []}).methods[0].graph
    assert (len(drawn["nodes"]), drawn["whole"], drawn["hidden"]) == (61, False, 0)
    assert len(drawn["edges"]) == 60


def test_the_same_content_has_the_same_bytes_and_names_no_other_file(built: Outcome, build: Build) -> None:
    again = build(MANIFEST, "--html", model=MODEL)
    page = built.read("net.report.html")
    assert again.read("net.report.html") == page
    text = page.decode()
    assert "default-src 'none'" in html.unescape(text)
    assert "src=" not in text.partition("<script")[0]
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert set(data["graphs"]) == {"0", "1"}


def test_a_page_needs_a_program(build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.pte"
    broken.write_bytes(b"1234ET12 and no more")
    assert main.main(["inspect", str(broken), "--html", str(tmp_path / "page.html")]) == 2
    assert "the file is damaged" in capfd.readouterr().err
    assert not (tmp_path / "page.html").exists()
    assert main.main(["inspect", str(broken), "--against", str(broken)]) == 2
    assert "--against needs --html" in capfd.readouterr().err
