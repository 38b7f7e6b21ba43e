// `cheapest`: cost against latency, and the reader's own limits, which move the pick.

const ITERATIONS = 1000;

function costPicture(study) {
  const id = "cost";
  const title = "Cost against latency";
  const points = study.places;
  if (!points.length) return picture({id, title, missing: "No policy has both a cost and a latency in this study.", full: true});
  const state = {...study.preference};
  const source = points.some((one) => one.source === "simulated") ? "simulated" : "measured";
  const pickWords = el("p", {class: "pick", id: newId("pick"), role: "status", "aria-live": "polite"});
  let canvas = null;
  const move = () => {
    pickWords.replaceChildren(...pickSentence(points, state));
    canvas ??= card.querySelector(".canvas");
    if (canvas) redraw(canvas);
  };
  const card = picture({
    id, title, full: true,
    lead: `Low and left is better; on the frontier no other policy is both cheaper and faster. Numbers are devices. Price: ${study.price}. The sliders are your own limits.`,
    controls: costSliders(points, state, move),
    words: () => costWords(points, state),
    legend: legendOf([
      {color: "var(--series-0)", source, line: true, words: `on the frontier, ${source}`},
      {color: REST, source, words: `dominated, ${source}`},
      ...(points.some((one) => one.source === "profiled") ? [{color: REST, source: "profiled", words: "measured in a few steps"}] : []),
      {color: "var(--series-1)", square: true, words: "the pick within your limits"},
    ]),
    draw: (width) => costChart(points, state, width),
    table: () => plainTable(`Cost of ${ITERATIONS} iterations and latency`, [
      {label: "Policy", cell: (one) => one.name},
      {label: "Devices", cell: (one) => one.devices, number: true},
      {label: "Cost", cell: (one) => usd(one.cost * ITERATIONS), number: true},
      {label: "Latency", cell: (one) => seconds(one.latency), number: true},
      {label: "Frontier", cell: (one) => (one.frontier ? "yes" : "no")},
    ], points),
  });
  card.querySelector(".canvas").before(pickWords);
  pickWords.replaceChildren(...pickSentence(points, state));
  return card;
}

/** As in the search: within a latency the cheapest, within a cost the fastest, without limits the least cost x latency. */
function pickOf(points, {latency, cost}) {
  const frontier = points.filter((one) => one.frontier);
  const within = frontier.filter((one) => (latency == null || one.latency <= latency) && (cost == null || one.cost <= cost));
  if (!within.length) return null;
  const least = (value) => within.reduce((a, b) => (value(b) < value(a) ? b : a));
  if (latency == null && cost == null) return within.find((one) => one.knee) ?? least((one) => one.cost * one.latency);
  return latency != null ? least((one) => one.cost) : least((one) => one.latency);
}

function pickSentence(points, state) {
  const pick = pickOf(points, state);
  if (!pick) return ["No policy on the frontier keeps these limits. Move a slider to the right."];
  return [
    "Pick: ", el("strong", {}, pick.name), ` at batch ${pick.batch}: ${usd(pick.cost * ITERATIONS)} for ${ITERATIONS} iterations, ${seconds(pick.latency)} each`,
    ` on ${pick.devices} ${pick.devices === 1 ? "device" : "devices"}.`,
  ];
}

function costWords(points, state) {
  const frontier = points.filter((one) => one.frontier);
  return `Cost against latency of ${points.length} policies, ${frontier.length} on the frontier. ${pickSentence(points, state).map((one) => one.textContent ?? one).join("")}`;
}

function costSliders(points, state, move) {
  return el("div", {class: "sliders"}, [
    limitSlider("Longest latency of an iteration", points.map((one) => one.latency), state, "latency", seconds, move),
    limitSlider(`Highest cost of ${ITERATIONS} iterations`, points.map((one) => one.cost), state, "cost", (one) => usd(one * ITERATIONS), move),
  ]);
}

/** A slider over the values that occur, so that each step can change something; at its right end there is no limit. */
function limitSlider(label, values, state, name, show, move) {
  const stops = [...new Set(values)].sort((a, b) => a - b);
  const given = state[name];
  // A limit lies at the highest value that keeps it; "no limit" is one further.
  const kept = given == null ? stops.length : stops.filter((one) => one <= given).length - 1;
  const input = el("input", {type: "range", id: newId(name), min: 0, max: stops.length, step: 1, "data-limit": name});
  input.value = Math.max(0, kept);
  const output = el("output", {for: input.id});
  const update = () => {
    const at = Number(input.value);
    const words = at >= stops.length ? "no limit" : `at most ${show(stops[at])}`;
    output.textContent = words;
    input.setAttribute("aria-valuetext", words);
    return at >= stops.length ? null : stops[at];
  };
  update();
  input.addEventListener("input", () => {
    state[name] = update();
    move();
  });
  return el("div", {}, el("label", {for: input.id}, el("span", {}, label), output), input);
}

function costChart(points, state, width) {
  const narrow = width < 560;
  const [unit, name] = secondUnit(Math.max(...points.map((one) => one.latency)));
  const x = (one) => one.latency / unit;
  const y = (one) => one.cost * ITERATIONS;
  const frontier = points.filter((one) => one.frontier).sort((a, b) => a.latency - b.latency);
  const dominated = points.filter((one) => !one.frontier);
  const pick = pickOf(points, state);
  const [least, most] = [Math.min(...points.map(y)), Math.max(...points.map(y))];
  const wide = [Math.min(...points.map(x)), Math.max(...points.map(x))];
  const scaleOf = (low, high) => (high / low >= 5 ? "log" : "linear");
  const type = {x: scaleOf(...wide), y: scaleOf(least, most)};
  return chart({
    width, height: narrow ? 320 : 400, marginLeft: 60, marginRight: 24, inset: 14,
    x: {type: type.x, nice: type.x === "linear", grid: true, ticks: narrow ? 4 : 8, label: `Latency of an iteration (${name}${type.x === "log" ? ", log scale" : ""}) →`, labelAnchor: "center", tickFormat: tick},
    y: {type: type.y, nice: type.y === "linear", grid: true, ticks: 6, label: `↑ Cost of ${ITERATIONS} iterations (US$${type.y === "log" ? ", log scale" : ""})`, tickFormat: tick},
    marks: [
      state.latency != null && Plot.ruleX([state.latency / unit], {stroke: "currentColor", strokeWidth: 1.75, className: "limit"}),
      state.cost != null && Plot.ruleY([state.cost * ITERATIONS], {stroke: "currentColor", strokeWidth: 1.75, className: "limit"}),
      Plot.line(frontier, {x, y, curve: "step-after", stroke: "var(--series-0)", strokeWidth: 1.75}),
      ...["simulated", "profiled", "measured"].map((source) => sourceDots(dominated.filter((one) => one.source === source), source, {x, y, color: REST, radius: 4})),
      ...["simulated", "profiled", "measured"].map((source) => sourceDots(frontier.filter((one) => one.source === source), source, {x, y, color: "var(--series-0)", radius: 5.5})),
      Plot.text(frontier, {x, y, text: (one) => `${one.devices}`, dx: -11, dy: 12, fill: "var(--quiet)", stroke: "var(--surface)", strokeWidth: 3}),
      pick && Plot.dot([pick], {x, y, r: 10, stroke: "var(--series-1)", strokeWidth: 3, className: "picked"}),
      pick && Plot.text([pick], {x, y, text: () => "pick", dx: 12, dy: -13, textAnchor: "start", fontWeight: 650, fill: "currentColor", stroke: "var(--surface)", strokeWidth: 4}),
      tips(points, {x, y, title: (one) => `${one.name}, batch ${one.batch}\n${one.devices} ${one.devices === 1 ? "device" : "devices"}: ${usd(y(one))} for ${ITERATIONS} iterations\n${seconds(one.latency)} each, ${one.frontier ? "on the frontier" : "dominated"}`}),
    ],
  });
}
