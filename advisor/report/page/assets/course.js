// The search's course: what was tried when, and the best so far.

function coursePicture(study) {
  const id = "course";
  const title = "The course of the search";
  const trials = study.course.map((one) => ({...one.of, order: one.number, at: one.at, best: one.best?.rate}));
  if (!trials.length) return picture({id, title, missing: "The order of the trials was not recorded in this study.", full: true});
  const timed = trials.filter((one) => one.rate != null);
  const failed = trials.filter((one) => !timed.includes(one));
  const clock = trials.every((one) => one.at != null);
  const x = (one) => (clock ? one.at : one.order);
  const steps = trials.filter((one) => one.best != null).map((one) => ({x: x(one), best: one.best}));
  const best = steps.at(-1)?.best;
  return picture({
    id, title, full: true,
    lead: `${trials.length === 1 ? "1 trial" : `${trials.length} trials, in the order in which they ran`}. ${study.stopped ? `The search stopped because ${study.stopped}.` : ""}`,
    words: `The course of the search: ${timed.length} trials with a throughput, ${failed.length} without. ${best == null ? "" : `The best runs ${rate(best)}.`}`,
    legend: legendOf([
      ...sourceEntries(timed),
      ...(failed.length ? [{color: "var(--bad)", cross: true, words: "ended without a throughput (refused, out of memory, crashed)"}] : []),
      {color: "var(--series-2)", line: true, words: "the best so far, by the goal"},
    ]),
    draw: (width) => courseChart({timed, failed, steps, clock}, width),
    table: () => plainTable("Trials in their order", [
      {label: "#", cell: (one) => one.order, number: true},
      ...(clock ? [{label: "At", cell: (one) => seconds(one.at), number: true}] : []),
      {label: "Policy", cell: (one) => one.name},
      {label: "Batch", cell: (one) => one.batch, number: true},
      {label: "Samples/s", cell: (one) => (one.rate == null ? null : significant(one.rate)), number: true},
      {label: "Outcome", cell: (one) => [one.outcome, one.reason].filter(Boolean).join(": ")},
    ], trials),
  });
}

function courseChart({timed, failed, steps, clock}, width) {
  const x = (one) => (clock ? one.at : one.order);
  return chart({
    width, height: 300, marginLeft: 56, marginRight: 24, inset: 8,
    x: {label: clock ? "Time since the start (s) →" : "Trial →", labelAnchor: "center", ticks: width < 560 ? 5 : 10, tickFormat: (one) => (Number.isInteger(one) ? String(one) : "")},
    y: {zero: true, nice: true, grid: true, label: "↑ Throughput (samples/s)", tickFormat: tick},
    marks: [
      Plot.ruleY([0], {stroke: "var(--quiet)"}),
      Plot.line(steps, {x: "x", y: "best", curve: "step-after", stroke: "var(--series-2)", strokeWidth: 2}),
      ...Object.keys(SOURCES).reverse().map((source) => sourceDots(timed.filter((one) => one.source === source), source, {x, y: "rate", color: "var(--series-0)", radius: 4})),
      Plot.dot(failed, {x, y: 0, symbol: "times", stroke: "var(--bad)", strokeWidth: 1.75, r: 3.5}),
      tips([...timed, ...failed], {x, y: (one) => one.rate ?? 0, title: (one) => [`${one.order}: ${one.name}, batch ${one.batch}`, one.rate == null ? one.outcome : `${rate(one.rate)}, ${SOURCES[one.source].words}`, one.reason && shortened(one.reason, 160)].filter(Boolean).join("\n")}),
    ],
  });
}
