// Draws the graphs and the treemaps of the page. All texts come from files that may be hostile: they are only ever set
// as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const element = (name, text) => Object.assign(document.createElement(name), text === undefined ? {} : { textContent: text });
  const OPERATOR = 0, NAME = 1, LAYER = 2, WHERE = 3, WHY = 4, BLOCK = 5;
  const MOST_LAID_OUT = 200; // nodes: dagre takes longer than a second for more
  const MOST_RESULTS = 200;
  const FONT = 12, LEAST_FONT = 11; // pixels; a smaller label is left out
  const PALETTE = ["#2f72d6", "#8250df", "#0a7ea4", "#a8326e", "#2a7d42", "#b35900"]; // readable below white text
  let drawing = null, graph = null;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const text = (node, which) => graph.texts[node[which]];
  const backendOf = (node) => (node[BLOCK] < 0 ? "" : graph.blocks[node[BLOCK]][0]);
  const short = (operator) => operator.split("::").pop();
  const backends = [...new Set(Object.values(data.graphs).flatMap((each) => each.blocks.map((block) => block[0])))].sort();
  const colorOf = (backend) => (backend === "" ? color("portable") : PALETTE[backends.indexOf(backend) % PALETTE.length]);

  // Rows by the longest way from an input, in the order of the program within a row. It takes linear time.
  function rows() {
    const depth = new Array(graph.nodes.length).fill(0), filled = new Map(), place = {};
    for (const [start, end] of [...graph.edges].sort((a, b) => a[1] - b[1])) depth[end] = Math.max(depth[end], depth[start] + 1);
    depth.forEach((row, number) => {
      const column = filled.get(row) || 0;
      filled.set(row, column + 1);
      place[number] = { x: column * 150, y: row * 60 };
    });
    return { name: "preset", positions: (node) => place[node.id()], fit: true };
  }

  function style() {
    const line = color("edge"), words = color("text");
    return [
      { selector: "node[width]", style: { "background-color": "data(color)", label: "data(label)", color: "#fff", shape: "round-rectangle",
        width: "data(width)", height: 26, "font-size": FONT, "text-valign": "center", "min-zoomed-font-size": LEAST_FONT } },
      { selector: "node.block", style: { "background-color": "data(color)", "background-opacity": 0.15, "border-width": 2,
        "border-color": "data(color)", color: words, "text-valign": "top", "font-size": FONT, padding: 8 } },
      { selector: "node.end", style: { shape: "ellipse", "background-color": color("back"), "border-width": 2, "border-color": line,
        color: words } },
      { selector: "edge", style: { width: 1.5, "line-color": line, "target-arrow-color": line, "target-arrow-shape": "triangle",
        "curve-style": graph.nodes.length > 1500 ? "haystack" : "bezier", "arrow-scale": 0.8 } },
      { selector: ".faded", style: { opacity: 0.2 } },
      { selector: ".chosen", style: { "border-width": 4, "border-color": words, opacity: 1 } },
    ];
  }

  function draw(which) {
    if (drawing) drawing.destroy();
    graph = data.graphs[which];
    const small = graph.nodes.length <= MOST_LAID_OUT, elements = [];
    const inside = new Map();
    for (const node of graph.nodes) if (node[BLOCK] >= 0) inside.set(node[BLOCK], (inside.get(node[BLOCK]) || 0) + 1);
    if (small && graph.whole)
      for (const number of inside.keys()) {
        const [backend, bytes] = graph.blocks[number];
        elements.push({ data: { id: `block${number}`, label: `${backend}, ${bytes}`, color: colorOf(backend) }, classes: "block" });
      }
    graph.nodes.forEach((node, number) => {
      const operator = text(node, OPERATOR), end = operator === "input" || operator === "output", label = short(operator);
      const parent = small && graph.whole && node[BLOCK] >= 0 ? `block${node[BLOCK]}` : undefined;
      elements.push({ data: { id: `${number}`, parent, label, color: colorOf(backendOf(node)), width: Math.max(50, 7.5 * label.length + 14) },
        classes: end ? "end" : "" });
    });
    for (const [start, end] of graph.edges) elements.push({ data: { id: `${start}-${end}`, source: `${start}`, target: `${end}` } });
    drawing = cytoscape({
      container: byId("canvas"), elements, style: style(), minZoom: 0.01, maxZoom: 4,
      hideEdgesOnViewport: !small, textureOnViewport: !small, boxSelectionEnabled: false, autoungrabify: true,
      layout: small ? { name: "dagre", ranker: "longest-path", rankSep: 30, nodeSep: 20, animate: false } : rows(),
    });
    drawing.on("tap", "node", (event) => { if (/^\d+$/.test(event.target.id())) choose(Number(event.target.id()), false); });
    begin();
    byId("canvas").dataset.nodes = graph.nodes.length;
    legend();
    search();
  }

  // All of the graph if its labels can be read then; else its beginning.
  function begin() {
    if (!graph.nodes.length || drawing.zoom() * FONT >= LEAST_FONT) return;
    const first = drawing.getElementById("0").position();
    drawing.viewport({ zoom: 1, pan: { x: drawing.width() / 2 - first.x, y: 40 - first.y } });
  }

  function show() {
    if (!drawing && byId("method").options.length) draw(byId("method").value);
  }

  function legend() {
    const used = [...new Set(graph.nodes.map(backendOf))].sort();
    byId("legend").replaceChildren(...used.map((backend) => {
      const item = element("li"), swatch = element("span");
      swatch.className = "swatch";
      swatch.style.background = colorOf(backend);
      item.append(swatch, backend === "" ? "not delegated" : backend);
      return item;
    }));
    if (graph.hidden) byId("legend").append(element("li", `${graph.hidden} more operators are not drawn`));
    if (!graph.whole) byId("legend").append(element("li", "each block is one node, since the graph is large"));
  }

  function choose(number, move) {
    const node = graph.nodes[number], list = element("dl");
    const block = node[BLOCK] < 0 ? "" : `${graph.blocks[node[BLOCK]].join(", ")}`;
    const facts = { operator: text(node, OPERATOR), name: text(node, NAME), layer: text(node, LAYER), "taken by": block,
      "not delegated": text(node, WHY), line: text(node, WHERE) };
    for (const [name, value] of Object.entries(facts)) if (value) list.append(element("dt", name), element("dd", value));
    byId("details").replaceChildren(list);
    drawing.$(".chosen").removeClass("chosen");
    const chosen = drawing.getElementById(`${number}`).addClass("chosen");
    if (move) { drawing.zoom(1); drawing.center(chosen); }
  }

  function search() {
    const wanted = byId("search").value.trim().toLowerCase(), list = byId("results");
    drawing.$(".faded").removeClass("faded");
    list.replaceChildren();
    byId("found").textContent = "";
    if (!wanted) return;
    const hits = new Set(graph.texts.flatMap((each, number) => (each.toLowerCase().includes(wanted) ? [number] : [])));
    const found = graph.nodes.flatMap((node, number) => (node.slice(0, BLOCK).some((each) => hits.has(each)) ? [number] : []));
    const kept = new Set(found);
    drawing.batch(() => drawing.nodes("[width]").forEach((node) => { if (!kept.has(Number(node.id()))) node.addClass("faded"); }));
    byId("found").textContent = `${found.length} of ${graph.nodes.length} operators`;
    for (const number of found.slice(0, MOST_RESULTS)) {
      const node = graph.nodes[number], item = element("li");
      const button = element("button", [text(node, OPERATOR), text(node, LAYER)].filter(Boolean).join(" in "));
      button.type = "button";
      button.addEventListener("click", () => choose(number, true));
      item.append(button);
      list.append(item);
    }
  }

  const pen = document.createElement("canvas").getContext("2d");
  // The first of the texts that fits; else nothing.
  function fitting(texts, width, height, font) {
    pen.font = font;
    return height < 16 ? "" : texts.find((each) => pen.measureText(each).width <= width - 8) || "";
  }

  function treemap(box) {
    const font = `12px ${getComputedStyle(box).fontFamily}`, said = byId(`chosen-${box.dataset.tree}`), HEADING = 18;
    const root = d3.hierarchy({ children: data.treemaps[box.dataset.tree].map((group) => ({ group, children: group.cells })) })
      .sum((node) => node.bytes || 0).sort((a, b) => b.value - a.value);
    const headed = (node) => node.depth === 1 && node.x1 - node.x0 > 40 && node.y1 - node.y0 > 50;
    d3.treemap().size([box.clientWidth, box.clientHeight]).paddingInner((node) => (node.depth ? 1 : 4))
      .paddingTop((node) => (headed(node) ? HEADING : 0))(root);
    const place = (name, node, height) => {
      const made = element("div"), [width, all] = [node.x1 - node.x0, node.y1 - node.y0];
      Object.assign(made.style, { left: `${node.x0}px`, top: `${node.y0}px`, width: `${width}px`, height: `${height || all}px` });
      made.className = name;
      return [made, width, all];
    };
    const headings = (root.children || []).filter(headed).map((node) => {
      const [made, width] = place("group", node, HEADING), { name } = node.data.group;
      made.textContent = fitting([name, name.split(".").slice(-2).join("."), name.split(".").pop()], width, HEADING, `600 ${font}`);
      made.setAttribute("aria-hidden", "true");
      return made;
    });
    const leaves = root.leaves().filter((leaf) => leaf.value && leaf.x1 - leaf.x0 > 1 && leaf.y1 - leaf.y0 > 1);
    const cells = leaves.map((leaf, number) => {
      const { label, name, bytes, note } = leaf.data, [cell, width, height] = place(`color${leaf.parent.data.group.color}`, leaf);
      const size = `${bytes.toLocaleString("en")} bytes`, first = fitting([label, label.split(".").slice(-2).join(".")], width, height, font);
      if (first) cell.append(element("span", first));
      if (first && height >= 34 && fitting([size], width, height, font)) cell.append(document.createElement("br"), element("span", size));
      cell.title = `${name}: ${size}, ${note}`;
      cell.id = `${box.dataset.tree}-${number}`;
      cell.setAttribute("role", "option");
      cell.addEventListener("pointerenter", () => pick(number));
      cell.addEventListener("click", () => pick(number));
      return cell;
    });
    let picked = -1;
    function pick(number) {
      if (picked >= 0) cells[picked].removeAttribute("aria-selected");
      picked = Math.max(0, Math.min(cells.length - 1, number));
      cells[picked].setAttribute("aria-selected", "true");
      box.setAttribute("aria-activedescendant", cells[picked].id);
      said.textContent = cells[picked].title;
    }
    const moves = { ArrowRight: () => picked + 1, ArrowDown: () => picked + 1, ArrowLeft: () => picked - 1, ArrowUp: () => picked - 1,
      Home: () => 0, End: () => cells.length - 1 };
    box.onkeydown = (event) => {
      if (!moves[event.key] || !cells.length || event.ctrlKey || event.metaKey) return;
      pick(moves[event.key]());
      event.preventDefault();
    };
    box.removeAttribute("aria-activedescendant");
    box.replaceChildren(...headings, ...cells);
  }

  function zoom(factor) {
    show();
    drawing.zoom({ level: drawing.zoom() * factor, renderedPosition: { x: drawing.width() / 2, y: drawing.height() / 2 } });
  }

  const KEYS = { "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: () => drawing.fit(),
    ArrowLeft: () => drawing.panBy({ x: 60, y: 0 }), ArrowRight: () => drawing.panBy({ x: -60, y: 0 }),
    ArrowUp: () => drawing.panBy({ x: 0, y: 60 }), ArrowDown: () => drawing.panBy({ x: 0, y: -60 }) };
  byId("canvas").addEventListener("keydown", (event) => {
    if (KEYS[event.key] && drawing && !event.ctrlKey && !event.metaKey) { KEYS[event.key](); event.preventDefault(); }
  });
  byId("closer").addEventListener("click", () => zoom(1.3));
  byId("farther").addEventListener("click", () => zoom(1 / 1.3));
  byId("fit").addEventListener("click", () => { show(); drawing.fit(); });
  byId("method").addEventListener("change", () => draw(byId("method").value));
  byId("search").addEventListener("input", () => { if (drawing) search(); else show(); });
  // A button of the profile shows its instruction in the graph.
  document.querySelectorAll("button.find").forEach((button) => button.addEventListener("click", () => {
    const option = [...byId("method").options].find((each) => each.textContent === button.dataset.method);
    if (!option) return;
    byId("method").value = option.value;
    byId("search").value = button.dataset.find;
    draw(option.value);
    byId("graph").scrollIntoView();
    byId("search").focus({ preventScroll: true });
  }));
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const recolor = () => { if (drawing) draw(byId("method").value); };
  preferred.addEventListener("change", recolor);
  byId("theme").addEventListener("click", () => {
    const dark = (document.documentElement.dataset.theme || (preferred.matches ? "dark" : "light")) === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    recolor();
  });
  // What is in sight is drawn at once, and the rest when it comes near.
  const pending = new Map([...document.querySelectorAll(".treemap")].map((box) => [box, () => treemap(box)]));
  pending.set(byId("canvas"), show);
  function make(box) {
    const drawIt = pending.get(box);
    pending.delete(box);
    if (drawIt) drawIt();
  }
  const near = new IntersectionObserver((seen) => seen.filter((each) => each.isIntersecting).forEach((each) => make(each.target)),
    { rootMargin: "300px" });
  for (const box of [...pending.keys()]) {
    if (box.getBoundingClientRect().top < innerHeight) make(box);
    else near.observe(box);
  }
  addEventListener("beforeprint", () => [...pending.keys()].forEach(make));
  addEventListener("resize", () => document.querySelectorAll(".treemap").forEach((box) => { if (!pending.has(box)) treemap(box); }));
  document.documentElement.dataset.drawn = String(Math.round(performance.now())); // milliseconds since the page began
})();
