// Where the time of a step goes, and what bounds it.

const PHASES = [
  ["forward", "forward", "var(--part-parameters)"],
  ["backward", "backward", "var(--part-gradients)"],
  ["optimizer", "optimizer", "var(--part-optimizer)"],
  ["transfer", "transfer", "var(--part-activations)"],
  ["communication", "communication", "var(--part-temporaries)"],
  ["other", "other", "var(--part-other)"],
];

function stepPicture(study) {
  const id = "step";
  const title = "Where the time of a step goes";
  const steps = study.steps.map((one) => ({...one, parts: one.phases, name: `${one.of.name}${roleWords(one.of)}`, batch: one.of.samples_per_step, batchWords: one.of.batch}));
  if (!steps.length) return picture({id, title, missing: whyMissing(study, title, "No step was followed in this study, so it is not known where its time goes.")});
  const rows = steps.flatMap((step) => step.parts.map((part) => ({...part, step, perSample: part.seconds / step.batch})));
  const used = PHASES.filter(([phase]) => rows.some((one) => one.phase === phase));
  return picture({
    id, title,
    lead: `Time per sample, and what bounds each part. ${[...new Set([...steps.map((one) => one.obtained), ...unbound(steps), ...study.notDivided])].join(" ")}`,
    words: `Where the time of a step goes. ${steps.map((step) => `${step.name}: ${step.parts.map((one) => `${one.phase} ${seconds(one.seconds)}, ${one.bound ? `bound by ${one.bound}` : "bound not known"}`).join("; ")}.`).join(" ")}`,
    legend: legendOf(used.map(([, words, color]) => ({color, square: true, words}))),
    draw: (width) => stepChart(steps, rows, used, width),
    table: () => plainTable("Time of a step by phase", [
      {label: "Training", cell: (one) => one.step.name},
      {label: "Phase", cell: (one) => one.phase},
      {label: "Per step", cell: (one) => seconds(one.seconds), number: true},
      {label: "Per sample", cell: (one) => seconds(one.perSample), number: true},
      {label: "Bound by", cell: (one) => Object.entries(one.seconds_by_bound).map(([bound, value]) => `${bound} ${seconds(value)}`).join(", ") || "not known"},
    ], rows),
  });
}

/** Why some parts have no bound, or only a coarse one: once for each reason. */
function unbound(steps) {
  const reasons = new Map();
  for (const {phase, unbound: why} of steps.flatMap((one) => one.parts)) {
    if (why) reasons.set(why, [...new Set([...(reasons.get(why) ?? []), phase])]);
  }
  return [...reasons].map(([why, phases]) => `What bounds the operators of ${phases.join(" and ")} cannot be told: ${why}.`);
}

function stepChart(steps, rows, used, width) {
  const sum = (step) => step.parts.reduce((a, b) => a + b.seconds, 0) / step.batch;
  const most = Math.max(...steps.map(sum));
  const [unit, name] = secondUnit(most);
  const order = used.map(([phase]) => phase);
  const scale = (width - 80) / most;
  // A part says what bounds it where there is room.
  const inside = rows.map((one) => ({...one, bound: one.bound || "bound not known"})).map((one) => ({...one, label: one.perSample * scale > one.bound.length * 6.6 + 8 ? one.bound : ""}));
  // ... and otherwise below its bar.
  const below = steps.map((step) => ({policy: step.policy, text: inside.filter((one) => one.step === step && !one.label && one.perSample > 0).map((one) => `${one.phase}: ${one.bound}`).join(", ")}));
  return chart({
    width, height: steps.length * 78 + 48, marginLeft: 4, marginRight: 72, marginTop: 4,
    x: {domain: [0, most / unit], grid: true, label: `Time per sample (${name}) →`, labelAnchor: "center", ticks: 4, tickFormat: tick},
    y: {domain: steps.map((one) => one.policy), axis: null, padding: 0},
    color: {domain: order, range: used.map(([, , color]) => color)},
    marks: [
      Plot.barX(rows, {y: (one) => one.step.policy, x: (one) => one.perSample / unit, fill: "phase", order, insetTop: 26, insetBottom: 22, stroke: "var(--surface)", strokeWidth: 0.75}),
      Plot.text(inside, Plot.stackX({y: (one) => one.step.policy, x: (one) => one.perSample / unit, z: "phase", order, text: "label", fill: {value: (one) => (one.phase === "forward" ? "var(--on-forward)" : "var(--part-text)"), scale: null}, dy: 2, fontSize: 11})),
      Plot.text(steps, {y: "policy", frameAnchor: "left", textAnchor: "start", dy: -26, text: (one) => labelled(one.of.name, `, batch ${one.batchWords}${roleWords(one.of)}`, Math.floor(width / 6.6) - 4)}),
      Plot.text(steps, {y: "policy", x: (one) => sum(one) / unit, textAnchor: "start", dx: 6, dy: 2, text: (one) => seconds(sum(one)), fill: "var(--quiet)"}),
      Plot.text(below, {y: "policy", frameAnchor: "left", textAnchor: "start", dy: 27, fontSize: 11, text: (one) => shortened(one.text, Math.floor(width / 5.8) - 4), fill: "var(--quiet)"}),
    ],
  });
}
