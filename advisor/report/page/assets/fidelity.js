// Lossy candidates beside the reference run: losses over the same batches, and how close the gradient is.

const SHAPES = ["circle", "square", "triangle", "diamond2", "plus", "times"];

function lossPicture(study) {
  const id = "losses";
  const title = "Losses against the reference run";
  const compared = study.comparisons.filter((one) => one.losses.length && one.reference.length);
  if (!compared.length) {
    return picture({id, title, missing: "No lossy candidate was trained beside a reference run in this study."});
  }
  const rows = compared.flatMap((one, at) => one.losses.map((loss, step) => {
    const reference = one.reference[step];
    return {one, color: SERIES[at % 6], shape: SHAPES[at % 6], step: step + 1, loss, reference, away: reference ? (loss / reference - 1) * 100 : null};
  }));
  return picture({
    id, title, full: true,
    lead: "Same parameters, batches and seed in every step, measured. Left the losses; right how far each is from the reference run at the same step.",
    words: `Losses of lossy candidates. ${compared.map((one) => `${one.name}: last loss ${fiveDigits(one.losses.at(-1))}, the reference run's ${fiveDigits(one.reference.at(-1))}; ${one.verdict}.`).join(" ")}`,
    legend: legendOf([
      {color: "currentColor", line: true, faint: true, words: `reference run (${[...new Set(compared.map((one) => one.reference_name))].join(", ")})`},
      ...compared.map((one, at) => ({color: SERIES[at % 6], shape: SHAPES[at % 6], words: one.name})),
    ], "series"),
    draw: (width) => el("div", {class: "panels"}, lossPanels(compared, rows, width)),
    table: () => el("div", {}, gradientTable(compared), plainTable("Losses step by step", [
      {label: "Candidate", cell: (row) => row.one.name},
      {label: "Step", cell: (row) => row.step, number: true},
      {label: "Loss", cell: (row) => fiveDigits(row.loss), number: true},
      {label: "Reference", cell: (row) => (row.reference == null ? null : fiveDigits(row.reference)), number: true},
    ], rows)),
  });
}

function lossPanels(compared, rows, width) {
  const each = width >= 720 ? Math.floor((width - 32) / 2) : width;
  const references = compared.flatMap((one, at) => one.reference.map((loss, step) => ({at, step: step + 1, loss})));
  const title = (row) => `${row.one.name}\nstep ${row.step}: ${fiveDigits(row.loss)}${row.reference == null ? "" : `, reference ${fiveDigits(row.reference)}`}`;
  const x = {label: "Step →", labelAnchor: "center", ticks: each < 400 ? 5 : 8, tickFormat: (one) => (Number.isInteger(one) ? String(one) : "")};
  const marks = (y) => [
    ...compared.map((one, at) => Plot.dot(rows.filter((row) => row.one === one), {x: "step", y, stroke: SERIES[at % 6], symbol: SHAPES[at % 6], r: 3, strokeWidth: 1.5})),
    tips(rows, {x: "step", y, title}),
  ];
  return [
    chart({
      width: each, height: 280, marginLeft: 48, marginRight: 12, inset: 6, x,
      y: {grid: true, label: "↑ Loss", ticks: 6, tickFormat: tick},
      marks: [Plot.line(references, {x: "step", y: "loss", z: "at", stroke: "currentColor", strokeWidth: 3.5, strokeOpacity: 0.35}), ...marks("loss")],
    }),
    chart({
      width: each, height: 280, marginLeft: 56, marginRight: 12, inset: 6, x,
      y: {grid: true, label: "↑ Difference from the reference run (%)", ticks: 6, tickFormat: tick},
      color: {type: "identity"},
      marks: [
        Plot.ruleY([0], {stroke: "currentColor", strokeWidth: 3.5, strokeOpacity: 0.35}),
        Plot.line(rows, {x: "step", y: "away", z: (row) => row.one.combination, stroke: "color", strokeWidth: 1.5}),
        ...marks("away"),
      ],
    }),
  ];
}

/** How close the gradients are: a cosine of 1 and an error of 0 are the same gradient. */
function gradientPicture(study) {
  const id = "gradients";
  const title = "Gradients against the reference run";
  const compared = study.comparisons.filter((one) => one.gradient_error != null);
  if (!compared.length) return picture({id, title, missing: "No gradient of a lossy candidate was compared in this study."});
  return picture({
    id, title,
    lead: "Relative error of the first gradient: 0 is the same gradient, 100% as far away as no gradient at all.",
    words: `Relative gradient errors. ${compared.map((one) => `${one.name}: ${percent(one.gradient_error)}.`).join(" ")}`,
    draw: (width) => gradientChart(compared, width),
    table: () => gradientTable(compared),
  });
}

function gradientChart(compared, width) {
  const most = Math.max(...compared.map((one) => one.gradient_error * 100));
  const error = (one) => one.gradient_error * 100;
  return chart({
    width, height: compared.length * 46 + 50, marginLeft: 4, marginRight: 60, marginTop: 4,
    x: {domain: [0, most || 1], nice: true, grid: true, ticks: 5, label: "Relative error of the gradient (%) →", labelAnchor: "center", tickFormat: tick},
    y: {type: "band", domain: compared.map((one) => one.combination), axis: null, padding: 0},
    marks: [
      Plot.barX(compared, {y: "combination", x: error, fill: "var(--series-0)", insetTop: 24, insetBottom: 8}),
      Plot.text(compared, {y: "combination", frameAnchor: "left", textAnchor: "start", dy: -12, text: (one) => shortened(one.name, Math.floor(width / 6.8))}),
      Plot.text(compared, {y: "combination", x: error, dx: 8, dy: 9, textAnchor: "start", text: (one) => percent(one.gradient_error), fill: "var(--quiet)"}),
    ],
  });
}

function gradientTable(compared) {
  return plainTable("Gradients of lossy candidates", [
    {label: "Candidate", cell: (one) => one.name},
    {label: "Relative error", cell: (one) => percent(one.gradient_error), number: true},
    {label: "Cosine", cell: (one) => (one.gradient_cosine == null ? null : one.gradient_cosine.toFixed(6)), number: true},
    {label: "Ratio of norms", cell: (one) => (one.gradient_norm_ratio == null ? null : fiveDigits(one.gradient_norm_ratio)), number: true},
    {label: "Verdict", cell: (one) => one.verdict},
  ], compared);
}
