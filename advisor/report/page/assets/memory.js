// What fills the memory and when, against the limit.

const PARTS = [
  ["parameters", "parameters", "var(--part-parameters)"],
  ["gradients", "gradients", "var(--part-gradients)"],
  ["optimizer_state", "optimizer state", "var(--part-optimizer)"],
  ["activations", "activations", "var(--part-activations)"],
  ["temporaries", "temporaries", "var(--part-temporaries)"],
  ["other", "buffers and batch", "var(--part-other)"],
];

/** Memory over one step, stacked, for each training that was followed. */
function timelinePicture(study) {
  const id = "memory";
  const title = "Memory over one step";
  const followed = study.timelines.filter((one) => one.moments.length > 1);
  if (!followed.length) {
    return picture({id, title, missing: whyMissing(study, title, "No step was followed operator by operator in this study; only the peaks are known."), full: true});
  }
  const all = followed.flatMap((line) => line.moments.flatMap((moment, at) => PARTS.map(([part]) => ({line, moment, at, part, bytes: moment.parts[part] ?? 0}))));
  const used = PARTS.filter(([part]) => all.some((one) => one.part === part && one.bytes > 0));
  const within = commonLimit(followed);
  const limited = limitShown(within, followed.flatMap((line) => line.moments.map(total)));
  return picture({
    id, title, full: true,
    lead: `What is alive from the first operator of a step to the last. ${followed[0].obtained}${limited ? "" : limitWords(within, followed, "above")}`,
    words: `Memory over one step, stacked by category. ${followed.map((line) => {
      const peak = line.moments.reduce((a, b) => (total(b) > total(a) ? b : a));
      return `${line.name}: peak ${bytes(total(peak))}, ${peak.phase}${line.operator ? ` (${line.operator})` : ""}.`;
    }).join(" ")}`,
    legend: legendOf([
      ...used.map(([, words, color]) => ({color, square: true, words})),
      ...(limited ? [{color: "currentColor", line: true, words: `limit ${bytes(within.limit)}`}] : []),
    ]),
    draw: (width) => timelineChart(within, followed, all, used, width),
    table: () => plainTable("Memory at each moment of a step", [
      {label: "Training", cell: (one) => one.line.name},
      {label: "Phase", cell: (one) => one.moment.phase},
      ...used.map(([part, words]) => ({label: words, cell: (one) => bytes(one.moment.parts[part] ?? 0), number: true})),
      {label: "all", cell: (one) => bytes(total(one.moment)), number: true},
    ], followed.flatMap((line) => line.moments.map((moment) => ({line, moment})))),
  });
}

function total(moment) {
  return Object.values(moment.parts ?? {}).reduce((a, b) => a + b, 0);
}

/** The phases whose names do not run into the one before. */
function withRoom(changes, scale, right) {
  let end = 0;
  return changes.filter(({at, phase}) => {
    const begin = at * scale;
    const ends = begin + phase.length * 6.5 + 8;
    if (begin < end || ends > right) return false;
    end = ends;
    return true;
  });
}

/** The limit that all have; processes that share one memory have each their part of it, and then there is none. */
function commonLimit(lines) {
  const limits = new Set(lines.map((one) => one.limit));
  return {limit: limits.size === 1 ? [...limits][0] : null};
}

/** Where a limit is that is not drawn; or the limits, where they differ. */
function limitWords({limit}, lines, where) {
  if (limit != null) return ` The limit of ${bytes(limit)} lies far ${where}.`;
  const each = lines.filter((one) => one.limit != null).map((one) => `${bytes(one.limit)} on ${one.deviceCount > 1 ? `each of ${one.deviceCount} devices` : "one device"}`);
  return each.length ? ` The limit is ${[...new Set(each)].join(", and ")}.` : "";
}

/** The limit is drawn where it is near: far above, it would flatten what there is to see. */
function limitShown(study, amounts) {
  return study.limit != null && study.limit <= 3 * Math.max(...amounts, 0);
}

/** The name of a policy, its batch and its role above its picture: on one line, or below each other on a phone. */
function titleLines({of, rest}, most, narrow) {
  if (!narrow) return [labelled(of, rest, most)];
  const batch = rest.replace(", ", "");
  return [shortened(of, most), ...(batch.length > most ? batch.split(/ (?=\()/) : [batch])];
}

function timelineChart(study, followed, all, used, width) {
  const peak = Math.max(...followed.flatMap((line) => line.moments.map(total)));
  const limit = limitShown(study, [peak]);
  const [unit, name] = byteUnit(Math.max(peak, limit ? study.limit : 0));
  const narrow = width < 560;
  const height = (narrow ? 176 : 206) + (limit ? 40 : 0);
  const charts = followed.map((line) => {
    const mine = all.filter((one) => one.line === line && used.some(([part]) => part === one.part));
    const ends = mine.filter((one) => one.at === line.moments.length - 1).map((one) => ({...one, at: line.moments.length}));
    const last = line.moments.length; // each moment lasts until the next
    const changes = line.moments.flatMap((moment, at) => (at === 0 || line.moments[at - 1].phase !== moment.phase ? [{at, phase: moment.phase}] : []));
    const top = line.moments.reduce((a, b) => (total(b) > total(a) ? b : a));
    const title = titleLines(line, Math.floor(width / 7.8), narrow);
    return chart({
      width, height: height + 14 * title.length, marginLeft: 56, marginRight: 20, marginTop: 26 + 14 * title.length, marginBottom: 30,
      x: {domain: [0, last], axis: null},
      y: {domain: [0, (limit ? Math.max(peak, study.limit) : peak) / unit], nice: true, grid: true, label: null, ticks: 4, tickFormat: (one) => `${tick(one)} ${one ? name : ""}`.trim()},
      color: {domain: used.map(([part]) => part), range: used.map(([, , color]) => color)},
      marks: [
        Plot.areaY([...mine, ...ends], {x: "at", y: (one) => one.bytes / unit, fill: "part", curve: "step-after", order: used.map(([part]) => part), stroke: "var(--surface)", strokeWidth: 0.5}),
        Plot.ruleX(changes.slice(1), {x: "at", stroke: "var(--quiet)", strokeDasharray: "2 3"}),
        Plot.text(withRoom(changes, (width - 76) / last, width - 56), {x: "at", text: "phase", frameAnchor: "bottom", textAnchor: "start", dx: 4, dy: 18, fill: "var(--quiet)"}),
        Plot.ruleY([0], {stroke: "var(--quiet)"}),
        limit && Plot.ruleY([study.limit / unit], {stroke: "currentColor", strokeWidth: 1.75}),
        limit && Plot.text([study.limit], {y: study.limit / unit, frameAnchor: "right", textAnchor: "end", dy: -8, text: () => "limit", fill: "currentColor", stroke: "var(--surface)", strokeWidth: 3}),
        Plot.text([line], {frameAnchor: "top-left", text: () => title.join("\n"), dy: -14 - 15 * title.length, dx: -50, fontWeight: 600, lineHeight: 1.25, textAnchor: "start"}),
        Plot.text([top], {x: line.moments.indexOf(top) + 0.5, y: total(top) / unit, text: () => `peak ${bytes(total(top))}${line.operator && width >= 480 ? `, ${shortened(line.operator, 40)}` : ""}`, dy: -8, fill: "currentColor", stroke: "var(--surface)", strokeWidth: 3}),
        tips(line.moments.map((moment, at) => ({moment, at: at + 0.5})), {
          x: "at", y: (one) => total(one.moment) / unit, pointer: Plot.pointerX,
          title: (one) => [one.moment.phase, ...used.filter(([part]) => one.moment.parts[part]).map(([part, words]) => `${words} ${bytes(one.moment.parts[part])}`), `all ${bytes(total(one.moment))}`].filter(Boolean).join("\n"),
        }),
      ],
    });
  });
  return el("div", {}, charts);
}

/** The parts of the memory at the peak, of the policies with a role and the fastest others. */
function peaksPicture(study) {
  const id = "peaks";
  const title = "What fills the memory";
  const shown = study.policies.filter((one) => one.parts && one.peak != null).slice(0, 60);
  const telling = tellingPolicies(shown, 8);
  if (!telling.length) return picture({id, title, missing: "No peak was measured in this study.", full: true});
  const rows = telling.flatMap((policy) => PARTS.map(([part]) => ({policy, part, bytes: policy.parts[part] ?? 0})));
  const used = PARTS.filter(([part]) => rows.some((one) => one.part === part && one.bytes > 0));
  const within = commonLimit(telling);
  const limit = limitShown(within, telling.map(total));
  return picture({
    id, title, full: true,
    lead: `Measured, at the peak of a step.${limit ? ` The line is the limit of ${bytes(within.limit)}.` : limitWords(within, telling, "to the right")}`,
    words: `Memory at the peak by category. ${telling.slice(0, 4).map((one) => `${one.name} at batch ${one.batch}: ${bytes(one.peak)}.`).join(" ")}`,
    legend: legendOf(used.map(([, words, color]) => ({color, square: true, words}))),
    draw: (width) => peaksChart(within, telling, rows, used, limit, width),
    table: () => plainTable("Parts of the memory at the peak", [
      {label: "Policy", cell: (one) => one.name},
      {label: "Batch", cell: (one) => one.batch, number: true},
      ...used.map(([part, words]) => ({label: words, cell: (one) => bytes(one.parts[part] ?? 0), number: true})),
      {label: "peak", cell: (one) => bytes(one.peak), number: true},
    ], shown),
  });
}

/** Those with a role, then the first of each other combination, then the rest; in their own order. */
function tellingPolicies(policies, most) {
  const firsts = new Set(policies.filter((one, at) => policies.findIndex((two) => two.combination === one.combination) === at));
  const weight = (one) => (one.roles.length ? 2 : firsts.has(one) ? 1 : 0);
  const chosen = [...policies].sort((a, b) => weight(b) - weight(a)).slice(0, most);
  return policies.filter((one) => chosen.includes(one));
}

function peaksChart(study, telling, rows, used, limit, width) {
  const most = Math.max(...telling.map((one) => Math.max(one.peak, total(one))), limit ? study.limit : 0);
  const [unit, name] = byteUnit(most);
  const order = used.map(([part]) => part);
  const key = (one) => (one.policy ?? one).id;
  const room = Math.floor(width / 6.6) - 12;
  return chart({
    width, height: telling.length * 46 + 50, marginLeft: 4, marginRight: 76, marginTop: 8,
    x: {domain: [0, most / unit], grid: true, label: `Memory (${name}) →`, labelAnchor: "center", ticks: width < 560 ? 4 : 8, tickFormat: tick},
    y: {domain: telling.map((one) => one.id), axis: null, padding: 0},
    color: {domain: order, range: used.map(([, , color]) => color)},
    marks: [
      Plot.barX(rows, {y: key, x: (one) => one.bytes / unit, fill: "part", order, insetTop: 24, insetBottom: 4, stroke: "var(--surface)", strokeWidth: 0.75}),
      limit && Plot.ruleX([study.limit / unit], {stroke: "currentColor", strokeWidth: 1.75}),
      Plot.text(telling, {y: key, frameAnchor: "left", textAnchor: "start", dy: -12, text: (one) => labelled(one.name, `, batch ${one.batch}${roleWords(one)}`, room), stroke: "var(--surface)", strokeWidth: 4, fill: "currentColor"}),
      Plot.text(telling, {y: key, x: (one) => total(one) / unit, textAnchor: "start", dx: 6, dy: 10, text: (one) => bytes(one.peak), fill: "var(--quiet)", stroke: "var(--surface)", strokeWidth: 4}),
    ],
  });
}
