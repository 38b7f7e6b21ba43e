// What all pictures share: the frame, the marks that say where a number is from, legends, labels at the end of lines.

/** Where a number is from. Shape and line differ, so that no reader depends on colour. */
const SOURCES = {
  measured: {words: "measured", symbol: "circle", filled: true, dash: null},
  profiled: {words: "measured in a few steps", symbol: "circle", filled: false, dash: null},
  predicted: {words: "predicted", symbol: "diamond", filled: false, dash: "5 4"},
  simulated: {words: "simulated", symbol: "triangle", filled: false, dash: "1 4"},
};

const SERIES = [0, 1, 2, 3, 4, 5].map((one) => `var(--series-${one})`);
const REST = "var(--series-rest)";

/** Pictures that are drawn anew when the page gets wider or narrower. */
const drawn = new Map();
let onPaper = false;
const widths = typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => {
  requestAnimationFrame(() => {
    // A change of size that is reported late must not undo the drawing for the printer.
    if (!onPaper) for (const {target} of entries) redraw(target, false);
  });
});

/**
 * A picture in its frame.
 *
 * `draw(width)` gives the drawing; `missing` is the sentence that says why there is none. `table` is the text
 * equivalent, made when it is opened; `words` says the same to a screen reader.
 */
function picture({id, title, lead, draw, missing, words, legend, controls, table, full = false}) {
  if (missing) return {title, missing};
  const heading = el("h3", {id: newId("picture")}, title);
  const card = el("section", {class: full ? "card full picture" : "card picture", id, "aria-labelledby": heading.id}, heading);
  if (lead) card.append(el("p", {class: "lead small"}, lead));
  if (controls) card.append(controls);
  const canvas = el("div", {class: "canvas"});
  card.append(canvas);
  drawn.set(canvas, {draw, words, width: 0});
  if (legend) card.append(legend);
  if (table) card.append(lazyDetails("The numbers as a table", table));
  return card;
}

/** Pictures side by side, and what is missing for those that cannot be drawn. */
function pictureGrid(pictures, more = []) {
  const missing = pictures.filter((one) => one.missing);
  const there = pictures.filter((one) => !one.missing);
  widenLonely(there);
  return [
    el("div", {class: "pictures"}, there),
    missing.length + more.length > 0 && el("section", {class: "card", "aria-label": "Not drawn"}, el("h3", {}, "Not drawn, for lack of data"),
      el("dl", {class: "missing"}, missing.map((one) => el("div", {}, el("dt", {}, one.title), el("dd", {}, one.missing)))),
      more.filter((one) => !missing.some((two) => two.missing === one)).map((one) => el("p", {class: "quiet small"}, one))),
  ];
}

/** What the document says of a picture's lack of data, or else a sentence of ours. */
function whyMissing(study, title, otherwise) {
  return study.missing.find((one) => one.startsWith(title)) ?? otherwise;
}

/** A picture of half the width that has no neighbour gets the whole. */
function widenLonely(pictures) {
  let half = null;
  for (const one of [...pictures, null]) {
    const full = one === null || one.classList.contains("full");
    if (full && half) half.classList.add("full");
    half = full || half ? null : one;
  }
}

/** `details` whose content is made when they are opened for the first time. */
function lazyDetails(summary, make) {
  const details = el("details", {}, el("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(make());
  });
  return details;
}

/** Draw all pictures that are on the page by now, and fit its tables. */
function drawAll() {
  onPaper = false;
  for (const canvas of drawn.keys()) {
    if (!canvas.isConnected) {
      drawn.delete(canvas);
      widths?.unobserve(canvas);
    } else if (redraw(canvas, false)) {
      widths?.observe(canvas);
    }
  }
  fitTables();
}

/** Draw all pictures for a sheet of A4: text keeps its size on paper. */
function drawForPrint() {
  onPaper = true;
  for (const canvas of drawn.keys()) {
    if (canvas.isConnected) redraw(canvas, false, canvas.parentElement.classList.contains("full") ? 650 : 300);
  }
}

function redraw(canvas, always = true, width = Math.round(canvas.clientWidth)) {
  const one = drawn.get(canvas);
  if (!one || width === 0 || (!always && one.width === width)) return one != null;
  one.width = width;
  try {
    const made = one.draw(width);
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", typeof one.words === "function" ? one.words() : one.words);
    canvas.replaceChildren(made);
  } catch (error) {
    console.error(error);
    canvas.replaceChildren(el("p", {class: "quiet"}, `This could not be drawn (${error.message}). Its numbers are in the table.`));
  }
  return true;
}

/** A drawing by Observable Plot in our type, and without its style element, which the page's own rules replace. */
function chart({marks, ...options}) {
  const plot = (more) => Plot.plot({className: "plot", marginTop: 26, marginBottom: 40, style: {fontSize: "12px", fontFamily: "inherit"}, ...options, ...more, marks: marks.flat(Infinity).filter(Boolean)});
  let made = plot({});
  const values = [...made.querySelectorAll("[aria-label='y-axis tick label'] text")].map((one) => textWidth(one.textContent));
  const room = Math.ceil(Math.max(...values) + 9);
  if (values.length && room > options.marginLeft) made = plot({marginLeft: room});
  thinOut(made.querySelector("[aria-label='x-axis tick label']"));
  for (const style of made.querySelectorAll("style")) style.remove();
  for (const part of made.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  return made;
}

/** About how wide a value is on an axis, in pixels. */
function textWidth(text) {
  return [...text].reduce((sum, one) => sum + (/\d/.test(one) ? 7.7 : /[A-Z]/.test(one) ? 8 : 4), 0);
}

/** Values of the horizontal axis stand beside each other, or are left out: a logarithmic one has them where it likes. */
function thinOut(axis) {
  let end = -Infinity;
  for (const one of [...(axis?.children ?? [])]) {
    const middle = Number(/translate\(([-\d.]+)/.exec(one.getAttribute("transform"))?.[1]);
    const half = textWidth(one.textContent) / 2;
    if (middle - half < end + 5) one.remove();
    else end = middle + half;
  }
}

/** Points of one source; its shape is that of the source. */
function sourceDots(points, source, {x, y, color, radius = 4.5, ...options}) {
  const {symbol, filled} = SOURCES[source];
  const shape = symbol === "diamond" ? "diamond2" : symbol;
  return Plot.dot(points, {
    x, y, symbol: shape, r: radius,
    fill: filled ? color : "var(--surface)",
    stroke: color, strokeWidth: filled ? 0.5 : 1.75,
    className: `dots-${source}`,
    ...options,
  });
}

/** Text over the nearest point. Only text nodes are made of it. */
function tips(points, {x, y, title, pointer = Plot.pointer}) {
  return Plot.tip(points, pointer({x, y, title, fill: "var(--surface)", stroke: "var(--line)", fontSize: 12, lineHeight: 1.3, lineWidth: 32, textPadding: 9, maxRadius: 30}));
}

/** Names at the end of their lines, moved apart where they would meet. `ends`: {x, y, text, color}. */
function endLabels(ends, {gap = 15} = {}) {
  return (_index, scales, _values, dimensions) => {
    const placed = ends
      .map((one) => ({...one, px: scales.x(one.x), py: scales.y(one.y)}))
      .filter((one) => Number.isFinite(one.px) && Number.isFinite(one.py))
      .sort((a, b) => a.py - b.py);
    const lowest = dimensions.height - dimensions.marginBottom;
    placed.forEach((one, at) => {
      const above = placed.slice(0, at).filter((other) => Math.abs(other.px - one.px) < 90);
      one.at = Math.min(Math.max(one.py, ...above.map((other) => other.at + gap)), lowest - 4);
    });
    return svg("g", {class: "end-labels", "text-anchor": "start"}, placed.map((one) =>
      svg("text", {x: one.px + 10, y: one.at, dy: "0.35em", fill: "currentColor", stroke: "var(--surface)", "stroke-width": 4, "paint-order": "stroke"}, one.text)));
  };
}

/** A small picture of a mark for legends. */
function swatch({color = "currentColor", source = null, line = false, faint = false, square = false, cross = false, shape: kind = null, filled = false}) {
  const parts = [];
  if (kind) parts.push(svg("path", {d: d3.symbol(symbolOf(kind), 56)(), transform: "translate(10,8)", stroke: color, "stroke-width": 1.75, fill: filled ? color : "none"}));
  if (cross) parts.push(svg("path", {d: "M6,4L14,12M14,4L6,12", stroke: color, "stroke-width": 1.75}));
  if (square) parts.push(svg("rect", {x: 4, y: 2, width: 12, height: 12, rx: 2, fill: color}));
  if (line) {
    parts.push(svg("path", {d: "M0,8H20", stroke: color, "stroke-width": faint ? 3.5 : 2, "stroke-opacity": faint ? 0.35 : null, "stroke-dasharray": source ? SOURCES[source].dash : null}));
  }
  if (source) {
    const {symbol, filled: solid} = SOURCES[source];
    const shape = {
      circle: () => svg("circle", {cx: 10, cy: 8, r: 4}),
      diamond: () => svg("path", {d: "M10,2.5L15.5,8L10,13.5L4.5,8Z"}),
      triangle: () => svg("path", {d: "M10,2.5L15.5,12.5L4.5,12.5Z"}),
    }[symbol]();
    shape.setAttribute("stroke", color);
    shape.setAttribute("stroke-width", "1.75");
    shape.setAttribute("fill", solid ? color : "var(--surface)");
    parts.push(shape);
  }
  return svg("svg", {width: 20, height: 16, viewBox: "0 0 20 16", "aria-hidden": "true"}, parts);
}

function symbolOf(kind) {
  return {circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond2: d3.symbolDiamond2, plus: d3.symbolPlus, times: d3.symbolTimes}[kind];
}

function legendOf(entries, kind = "") {
  return el("ul", {class: `legend ${kind}`}, entries.map(({words, ...mark}) => el("li", {}, swatch(mark), el("span", {}, words))));
}

/** The entries of the sources that occur. */
function sourceEntries(points, {line = false, spread = false} = {}) {
  const occurring = new Set(points.map((one) => one.source));
  const entries = Object.entries(SOURCES)
    .filter(([source]) => occurring.has(source))
    .map(([source, {words}]) => ({source, line, words}));
  if (spread && entries.length) entries[0].words += "; the bar is the 95% interval";
  return entries;
}

/** Ticks of a logarithmic axis: the values themselves where few, else powers of two. */
function batchTicks(values, most = 9) {
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  if (distinct.length <= most) return distinct.reduce((kept, one) => (kept.length && one < 1.5 * kept.at(-1) ? kept : [...kept, one]), []);
  const powers = [];
  for (let one = 2 ** Math.floor(Math.log2(distinct[0])); one <= distinct.at(-1); one *= 2) powers.push(one);
  const inside = powers.filter((one) => one >= distinct[0]);
  return inside.filter((_, at) => at % Math.ceil(inside.length / most) === 0);
}

/** A name and what tells it from others of that name, which is kept where the name has to be shortened. */
function labelled(name, rest, most) {
  const kept = most - rest.length < 8 ? rest.replace(", hand-tuned)", ")") : rest;
  return shortened(name, Math.max(8, most - kept.length)) + kept;
}

/** A text that fits a number of characters; the whole is in the table and in the tip. */
function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}
