// Several studies side by side: two devices, two versions, before and after.

function comparisonSection(studies) {
  return el(
    "section",
    {id: "compare", "aria-labelledby": "compare-title"},
    el("div", {class: "group"}, el("h2", {id: "compare-title"}, `${studies.length} studies side by side`), el("p", {}, "Answers first, then what the studies have in common. Choose a study above to see all of it.")),
    el("div", {class: "card answers"}, answersTable(studies)),
    pictureGrid([sharedPicture(studies), ...studies.map((one) => curvesBeside(one, studies))]).filter(Boolean),
  );
}

function answersTable(studies) {
  const rows = [
    ["Answer", (one) => one.answer.headline],
    ["Goal", (one) => one.goalWords],
    ["Throughput", (one) => rate(one.answer.winner?.rate)],
    ["Baseline", (one) => rate(one.baseline?.rate)],
    ["Gain", (one) => one.answer.gain],
    ["Peak", (one) => bytes(one.answer.winner?.peak)],
    ["Cost", (one) => (one.answer.winner?.cost == null ? null : `${usd(one.answer.winner.cost * ITERATIONS)} for ${ITERATIONS} iterations`)],
    ["Run again", (one) => one.answer.state],
    ["Hardware", (one) => one.hardware],
    ["Memory limit", (one) => bytes(one.limit)],
    ["Date", (one) => one.date],
    ...[...new Set(studies.flatMap((one) => Object.keys(one.versions)))].map((name) => [name, (one) => one.versions[name]]),
  ];
  const shown = rows.filter(([, value]) => studies.some((one) => present(value(one))));
  return fittedTable("The answers of the studies", tableElement(
    "table",
    {},
    el("caption", {}, "What differs is in bold."),
    tableElement("thead", {}, tableElement("tr", {}, tableElement("td", {}), studies.map((one) => tableElement("th", {scope: "col"}, one.name)))),
    tableElement("tbody", {}, shown.map(([label, value]) => {
      const values = studies.map((one) => value(one) ?? "–");
      const same = values.every((one) => one === values[0]);
      const kind = (at) => (same ? (at ? "same again" : "same") : "");
      const cells = values.map((one, at) => tableElement("td", {class: kind(at), "data-label": `${studies[at].name}:`}, same ? one : el("strong", {}, one)));
      return tableElement("tr", {}, tableElement("th", {scope: "row"}, label), cells);
    })),
  ));
}

/** Policies that were measured in more than one of the studies. */
function sharedPolicies(studies) {
  const found = new Map();
  studies.forEach((study, at) => {
    for (const policy of study.policies) {
      if (!policy.measured) continue;
      const [of, rest] = [`${study.workload}: ${policy.name}`, `, batch ${policy.batch}`];
      if (!found.has(of + rest)) found.set(of + rest, {of, rest, by: new Map()});
      const {by} = found.get(of + rest);
      if (!by.has(at)) by.set(at, policy);
    }
  });
  return [...found].filter(([, {by}]) => by.size > 1).map(([name, {of, rest, by}]) => ({name, of, rest, by: [...by].map(([at, policy]) => ({at, policy, name}))}));
}

function sharedPicture(studies) {
  const shared = sharedPolicies(studies).sort((a, b) => Math.max(...b.by.map((one) => one.policy.rate)) - Math.max(...a.by.map((one) => one.policy.rate)));
  const id = "shared";
  const title = "The same policies in each study";
  if (!shared.length) return picture({id, title, missing: "No policy was measured in more than one of these studies.", full: true});
  const shown = shared.slice(0, 12);
  const points = shown.flatMap((one) => one.by);
  const widest = textWidth(tick(Math.max(...points.map(({policy}) => policy.rate))));
  return picture({
    id, title, full: true,
    lead: shared.length > shown.length ? `The ${shown.length} fastest of ${shared.length} that they have in common.` : "",
    words: shown.map((one) => `${one.name}: ${one.by.map(({at, policy}) => `${studies[at].name} ${rate(policy.rate)}`).join(", ")}.`).join(" "),
    legend: legendOf(studies.map((one, at) => ({color: SERIES[at % 6], shape: SHAPES[at % 6], filled: true, words: one.name}))),
    draw: (width) => chart({
      width, height: shown.length * 44 + 50, marginLeft: 6, marginRight: Math.max(24, widest / 2 + 4), marginTop: 4,
      x: {zero: true, nice: true, grid: true, label: "Throughput (samples/s) →", labelAnchor: "center", ticks: Math.min(6, Math.floor(width / (widest + 40))), tickFormat: tick},
      y: {type: "band", domain: shown.map((one) => one.name), axis: null, padding: 0},
      marks: [
        Plot.link(shown, {y: "name", x1: (one) => Math.min(...one.by.map(({policy}) => policy.rate)), x2: (one) => Math.max(...one.by.map(({policy}) => policy.rate)), stroke: "var(--line)", strokeWidth: 3, dy: 10}),
        ...studies.map((_, at) => Plot.dot(points.filter((one) => one.at === at), {y: "name", x: (one) => one.policy.rate, symbol: SHAPES[at % 6], fill: SERIES[at % 6], stroke: SERIES[at % 6], r: 5, dy: 10})),
        Plot.text(shown, {y: "name", frameAnchor: "left", textAnchor: "start", dy: -9, text: (one) => labelled(one.of, one.rest, Math.floor(width / 6.8))}),
      ],
    }),
    table: () => plainTable("The same policies", [
      {label: "Policy", cell: (one) => one.name},
      ...studies.map((study, at) => ({label: study.name, number: true, cell: (one) => rate(one.by.find((two) => two.at === at)?.policy.rate)})),
    ], shared),
  });
}

/** Throughput against batch of one study, on the scale of all of the same model. */
function curvesBeside(study, studies) {
  const most = Math.max(...studies.filter((one) => one.workload === study.workload).map((one) => highest(pointsOf(colouredCurves(one)))).filter(Number.isFinite));
  const curves = colouredCurves(study);
  const points = pointsOf(curves);
  const title = `Throughput: ${study.name}`;
  const id = newId("beside");
  if (!points.length) return picture({id, title, missing: "No batch was timed in this study."});
  return picture({
    id, title,
    words: throughputWords(curves),
    legend: legendOf(curves.filter((one) => one.rank < 4).map((one) => ({color: one.color, line: true, words: one.words})), "series"),
    draw: (width) => throughputChart(curves, points, width, most),
  });
}
