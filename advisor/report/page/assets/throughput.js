// Where throughput stops growing with the batch: one line per combination of methods and devices.

const MOST_COLOURED = 6;

function throughputPicture(study) {
  const curves = colouredCurves(study);
  const points = pointsOf(curves);
  const id = "throughput";
  const title = "Throughput against batch";
  const lead = "Where more samples at once stop paying. Each line is one combination of methods and devices.";
  if (!points.length) {
    return picture({id, title, lead, missing: "No batch was timed in this study, so there is no throughput to draw.", full: true});
  }
  const coloured = curves.filter((one) => one.rank < MOST_COLOURED);
  const rest = curves.filter((one) => one.rank >= MOST_COLOURED && one.points.length).length;
  const legend = el("div", {}, [
    legendOf([
      ...coloured.map((one) => ({color: one.color, line: true, words: one.words})),
      ...(rest ? [{color: REST, line: true, words: `${rest} other ${rest === 1 ? "combination" : "combinations"}`}] : []),
    ], "series"),
    legendOf(sourceEntries(points, {line: true, spread: points.some((one) => one.low != null)})),
  ]);
  return picture({
    id, title, lead, legend, full: true,
    words: throughputWords(curves),
    draw: (width) => throughputChart(curves, points, width),
    table: () => plainTable("Throughput of each combination at each batch", [
      {label: "Combination", cell: (one) => one.curve.name},
      {label: "Micro-batch", cell: (one) => one.batch, number: true},
      {label: "Samples per step", cell: (one) => one.samples, number: true},
      {label: "Samples/s", cell: (one) => significant(one.rate), number: true},
      {label: "95% interval", cell: (one) => interval(one.low, one.high), number: true},
      {label: "Peak", cell: (one) => bytes(one.peak), number: true},
      {label: "Source", cell: (one) => SOURCES[one.source].words},
    ], pointsOf(curves, {all: true})),
  });
}

/** All points of all curves, each with its curve; of predictions all, or only those of the coloured curves. */
function pointsOf(curves, {all = false} = {}) {
  return curves.flatMap((curve) => [...(all || curve.rank < MOST_COLOURED ? curve.predicted : []), ...curve.points].map((one) => ({...one, curve})));
}

/** The curves, the most telling first: winner, baseline, hand-tuned default, then the fastest. */
function colouredCurves(study) {
  const fastest = (curve) => Math.max(...(curve.points.length ? curve.points : curve.predicted).map((one) => one.rate)) - (curve.points.length ? 0 : 1e12);
  const order = (curve) => ROLES.findIndex((role) => curve.roles.includes(role)) >>> 0;
  const sorted = study.curves
    .filter((one) => one.points.length + one.predicted.length)
    .sort((a, b) => order(a) - order(b) || fastest(b) - fastest(a));
  return sorted.map((curve, rank) => ({
    ...curve,
    rank,
    color: SERIES[rank] ?? REST,
    words: curve.roles.length ? `${curve.name} (${curve.roles.join(", ")})` : curve.name,
    label: curve.roles.length ? curve.roles.join(", ") : "",
  }));
}

function throughputWords(curves) {
  const best = (curve) => (curve.points.length ? curve.points : curve.predicted).reduce((a, b) => (b.rate > a.rate ? b : a));
  return `Throughput against micro-batch. ${curves.slice(0, 3).map((curve) => {
    const top = best(curve);
    return `${curve.words}: most ${rate(top.rate)} at micro-batch ${top.batch}, ${SOURCES[top.source].words}.`;
  }).join(" ")}`;
}

function throughputChart(curves, points, width, most = null) {
  const narrow = width < 560;
  const back = [...curves].reverse(); // the most telling on top
  const ordered = back.flatMap((curve) => points.filter((one) => one.curve === curve));
  const color = (one) => one.curve.color;
  const lines = (sources, options) =>
    Plot.line(ordered.filter((one) => sources.includes(one.source)).sort((a, b) => a.batch - b.batch),
      {x: "batch", y: "rate", z: (one) => one.curve.rank, stroke: color, strokeWidth: 2, ...options});
  const ends = curves.filter((one) => one.label && one.points.length && one.rank < MOST_COLOURED).map((curve) => {
    const last = curve.points.reduce((a, b) => (b.batch > a.batch || (b.batch === a.batch && b.rate > a.rate) ? b : a));
    return {x: last.batch, y: last.rate, text: curve.label, color: curve.color};
  });
  const longest = Math.max(0, ...ends.map((one) => one.text.length));
  const marginRight = Math.min(Math.max(narrow ? 84 : 110, longest * 6.6 + 4), 0.45 * width); // the inset is room, too
  return chart({
    width, height: narrow ? 320 : 400, marginLeft: 56, marginRight,
    x: {type: "log", base: 2, ticks: batchTicks(points.map((one) => one.batch), narrow ? 6 : 10), tickFormat: (one) => String(one), label: "Micro-batch (samples) →", labelAnchor: "center", inset: 12},
    y: {domain: [0, most ?? highest(points)], nice: true, grid: true, label: "↑ Throughput (samples/s)", ticks: 6, tickFormat: tick},
    color: {type: "identity"},
    marks: [
      ...["predicted", "simulated"].map((source) => lines([source], {strokeDasharray: SOURCES[source].dash, strokeWidth: 1.5})),
      lines(["measured", "profiled"], {}),
      Plot.ruleX(ordered.filter((one) => one.low != null), {x: "batch", y1: "low", y2: "high", stroke: color, strokeWidth: 2, clip: true}),
      Plot.ruleY([0], {stroke: "var(--quiet)"}),
      ...Object.keys(SOURCES).reverse().map((source) =>
        sourceDots(ordered.filter((one) => one.source === source), source, {x: "batch", y: "rate", color})),
      endLabels(ends),
      tips(ordered, {x: "batch", y: "rate", title: (one) => [
        one.curve.words,
        `micro-batch ${one.batch}, ${one.samples} samples per step`,
        `${rate(one.rate)} ${spread(one.rate, one.low, one.high) ?? ""}, ${SOURCES[one.source].words}`,
        one.peak == null ? "" : `peak ${bytes(one.peak)}`,
      ].filter(Boolean).join("\n")}),
    ],
  });
}

/** The upper end of the axis: all points, and intervals as far as they do not flatten these. */
function highest(points) {
  const most = Math.max(...points.map((one) => one.rate));
  return Math.min(Math.max(...points.map((one) => one.high ?? one.rate)), 1.6 * most);
}

function interval(low, high, show = significant) {
  return low == null || high == null ? null : `${show(low)} to ${show(high)}`;
}
