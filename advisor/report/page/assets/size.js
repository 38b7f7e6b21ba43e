// `bigger`: throughput against the size of the model, with the floor that it must keep.

function sizePicture(study) {
  const id = "size";
  const title = "Size of the model against throughput";
  const points = study.sizes.filter((one) => one.rate != null);
  if (!points.length) return picture({id, title, missing: "No size of the model was timed in this study.", full: true});
  const lines = [["plain", study.ownSettings ? "your own settings" : "plain training", "var(--series-1)"], ["winner", "the winner's methods", "var(--series-0)"]].filter(([line]) => points.some((one) => one.line === line));
  const failed = study.sizes.filter((one) => one.rate == null && one.count != null);
  const words = Object.fromEntries(lines.map(([line, text]) => [line, text]));
  return picture({
    id, title, full: true,
    lead: "How much larger the model can be before it gets too slow or no longer fits.",
    words: `Throughput against parameters. ${points.map((one) => `${parameters(one.count)}, ${words[one.line]}: ${rate(one.rate)}.`).join(" ")}`,
    legend: el("div", {}, [
      legendOf(lines.map(([, text, color]) => ({color, line: true, words: text}))),
      legendOf([
        ...sourceEntries(points),
        ...(study.floor == null ? [] : [{color: "currentColor", line: true, words: `the floor, ${rate(study.floor)}`}]),
      ]),
    ]),
    draw: (width) => sizeChart(study, points, failed, lines, width),
    table: () => plainTable("Sizes that were tried", [
      {label: "Size", cell: (one) => one.size},
      {label: "Parameters", cell: (one) => parameters(one.count), number: true},
      {label: "Training", cell: (one) => words[one.line] ?? one.line},
      {label: "Samples/s", cell: (one) => (one.rate == null ? null : significant(one.rate)), number: true},
      {label: "Peak", cell: (one) => bytes(one.peak), number: true},
      {label: "Outcome", cell: (one) => one.reason || one.outcome},
    ], study.sizes),
  });
}

function sizeChart(study, points, failed, lines, width) {
  const colors = Object.fromEntries(lines.map(([line, , color]) => [line, color]));
  const color = (one) => colors[one.line];
  const most = Math.max(...points.map((one) => one.rate), study.floor ?? 0);
  const sizes = points.map((one) => one.count);
  const ratio = Math.max(...sizes) / Math.min(...sizes);
  const log = ratio >= 5;
  return chart({
    width, height: width < 560 ? 320 : 380, marginLeft: 56, marginRight: 40, inset: 12,
    x: {type: log ? "log" : "linear", nice: !log, ticks: width < 560 ? 4 : 8, label: `Parameters of the model${log ? " (log scale)" : ""} →`, labelAnchor: "center", tickFormat: (one) => parameters(one)},
    y: {domain: [0, most * 1.06], grid: true, ticks: 6, label: "↑ Throughput (samples/s)", tickFormat: tick},
    color: {type: "identity"},
    marks: [
      Plot.ruleY([0], {stroke: "var(--quiet)"}),
      study.floor != null && Plot.ruleY([study.floor], {stroke: "currentColor", strokeWidth: 1.75, className: "floor"}),
      study.floor != null && Plot.text([study.floor], {y: (one) => one, frameAnchor: "left", textAnchor: "start", dx: 4, dy: -9, text: () => "the floor", fill: "currentColor", stroke: "var(--surface)", strokeWidth: 3}),
      Plot.line(points.sort((a, b) => a.count - b.count), {x: "count", y: "rate", z: "line", stroke: color, strokeWidth: 2}),
      ...["simulated", "predicted", "profiled", "measured"].map((source) => sourceDots(points.filter((one) => one.source === source), source, {x: "count", y: "rate", color})),
      failed.length > 0 && Plot.dot(failed.filter((one) => one.count >= Math.min(...sizes) && one.count <= Math.max(...sizes)), {x: "count", y: 0, symbol: "times", stroke: color, strokeWidth: 2, r: 4}),
      tips(points, {x: "count", y: "rate", title: (one) => `${one.size}: ${parameters(one.count)} parameters\n${rate(one.rate)}, ${SOURCES[one.source].words}${one.peak == null ? "" : `\npeak ${bytes(one.peak)}`}`}),
    ],
  });
}
