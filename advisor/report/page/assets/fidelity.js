// Lossy candidates beside the reference run: losses over the same batches, and how close the gradient is.

function lossPicture(study) {
  const id = "losses";
  const title = "Losses against the reference run";
  const compared = study.comparisons.filter((one) => one.losses.length);
  if (!compared.length) {
    return picture({id, title, missing: study.lossesMissing || "No lossy candidate was trained beside a reference run in this study."});
  }
  const rows = compared.flatMap((one, at) => one.losses.map((loss, step) => ({one, at, step: step + 1, loss})));
  const references = compared.filter((one) => one.reference.length);
  const reference = references.length ? references[0].reference.map((loss, at) => ({step: at + 1, loss})) : [];
  const symbols = ["circle", "square", "triangle", "diamond2", "plus", "times"];
  return picture({
    id, title,
    lead: "The same batches and seed; a candidate whose losses leave the reference run is not eligible.",
    words: `Losses of ${compared.length} lossy candidates. ${compared.map((one) => `${one.name}: last loss ${fiveDigits(one.losses.at(-1))}${one.reference.length ? `, the reference run's ${fiveDigits(one.reference.at(-1))}` : ""}.`).join(" ")}`,
    legend: el("div", {}, [
      legendOf([
        ...(reference.length ? [{color: "currentColor", line: true, words: "reference run, without lossy methods"}] : []),
        ...compared.map((one, at) => ({color: SERIES[at % 6], source: "measured", words: one.name})),
      ], "series"),
    ]),
    draw: (width) => chart({
      width, height: 300, marginLeft: 48, marginRight: 24, inset: 6,
      x: {label: "Step →", labelAnchor: "center", ticks: width < 400 ? 5 : 8, tickFormat: (one) => (Number.isInteger(one) ? String(one) : "")},
      y: {grid: true, label: "↑ Loss", ticks: 6},
      color: {type: "identity"},
      marks: [
        Plot.line(reference, {x: "step", y: "loss", stroke: "currentColor", strokeWidth: 3.5, strokeOpacity: 0.35}),
        ...compared.map((one, at) => Plot.dot(rows.filter((row) => row.one === one), {x: "step", y: "loss", stroke: SERIES[at % 6], symbol: symbols[at % symbols.length], r: 3, strokeWidth: 1.5})),
        tips(rows, {x: "step", y: "loss", title: (row) => `${row.one.name}\nstep ${row.step}: ${fiveDigits(row.loss)}${row.one.reference[row.step - 1] == null ? "" : `, reference ${fiveDigits(row.one.reference[row.step - 1])}`}`}),
      ],
    }),
    table: () => el("div", {}, gradientTable(compared), plainTable("Losses step by step", [
      {label: "Candidate", cell: (row) => row.one.name},
      {label: "Step", cell: (row) => row.step, number: true},
      {label: "Loss", cell: (row) => fiveDigits(row.loss), number: true},
      {label: "Reference", cell: (row) => (row.one.reference[row.step - 1] == null ? null : fiveDigits(row.one.reference[row.step - 1])), number: true},
    ], rows)),
  });
}

/** How close the gradients are: a cosine of 1 and an error of 0 are the same gradient. */
function gradientPicture(study) {
  const id = "gradients";
  const title = "Gradients against the reference run";
  const compared = study.comparisons.filter((one) => one.gradient);
  if (!compared.length) return picture({id, title, missing: "No gradient of a lossy candidate was compared in this study."});
  return picture({
    id, title,
    lead: "Relative error of the first gradient: 0 is the same gradient, 100% as far away as no gradient at all.",
    words: `Relative gradient errors. ${compared.map((one) => `${one.name}: ${percent(one.gradient.error)}.`).join(" ")}`,
    draw: (width) => gradientChart(compared, width),
    table: () => gradientTable(compared),
  });
}

function gradientChart(compared, width) {
  const most = Math.max(...compared.map((one) => one.gradient.error * 100));
  return chart({
    width, height: compared.length * 46 + 52, marginLeft: 6, marginRight: 60, marginTop: 4,
    x: {domain: [0, most || 1], nice: true, grid: true, ticks: 5, label: "Relative error of the gradient (%) →", labelAnchor: "center"},
    y: {domain: compared.map((one) => one.id), axis: null, padding: 0},
    marks: [
      Plot.ruleY(compared, {y: "id", x1: 0, x2: (one) => one.gradient.error * 100, stroke: (one, at) => SERIES[at % 6], strokeWidth: 2, dy: 10}),
      ...compared.map((one, at) => Plot.dot([one], {y: "id", x: () => one.gradient.error * 100, fill: SERIES[at % 6], r: 5, dy: 10})),
      Plot.text(compared, {y: "id", frameAnchor: "left", textAnchor: "start", dy: -10, text: (one) => shortened(one.name, Math.floor(width / 6.8))}),
      Plot.text(compared, {y: "id", x: (one) => one.gradient.error * 100, dx: 10, dy: 10, textAnchor: "start", text: (one) => percent(one.gradient.error), fill: "var(--quiet)"}),
    ],
    color: {type: "identity"},
  });
}

function gradientTable(compared) {
  return plainTable("Gradients of lossy candidates", [
    {label: "Candidate", cell: (one) => one.name},
    {label: "Relative error", cell: (one) => percent(one.gradient?.error), number: true},
    {label: "Cosine", cell: (one) => (one.gradient?.cosine == null ? null : one.gradient.cosine.toFixed(6)), number: true},
    {label: "Ratio of norms", cell: (one) => (one.gradient?.norm_ratio == null ? null : fiveDigits(one.gradient.norm_ratio)), number: true},
    {label: "Verdict", cell: (one) => one.verdict},
  ], compared);
}
