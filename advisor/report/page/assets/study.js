// The document as the pictures want it. Only this file knows the document's fields (advisor/report/page/document.py),
// whose defaults are left out.

function readStudies({studies, version}) {
  const read = studies.map((one) => readStudy(one, version));
  return read.map((one) => ({...one, name: nameAmong(one, read)}));
}

/** Studies with the same title are told apart by their goals, or else by their folders. */
function nameAmong(study, all) {
  const alike = all.filter((one) => one.name === study.name);
  if (alike.length === 1) return study.name;
  if (new Set(alike.map((one) => one.goal)).size === alike.length) return `${study.name}, ${study.goal}`;
  return `${study.name} (${folderAmong(study, alike)})`;
}

/** The end of a study's path that no other has: its folder, or more where those have one of the same name. */
function folderAmong(study, all) {
  const partsOf = (one) => one.folder.split(/[\\/]/).filter(Boolean);
  const others = all.filter((one) => one !== study);
  for (let count = 1; count <= partsOf(study).length; count += 1) {
    const end = (one) => partsOf(one).slice(-count).join("/");
    if (others.every((one) => end(one) !== end(study))) return end(study);
  }
  return study.id;
}

function readStudy(raw, version) {
  const policies = raw.policies.map((one) => readPolicy(one, raw));
  const byId = new Map(policies.map((one) => [one.id, one]));
  const named = (id) => byId.get(id) ?? {name: id, batch: "", roles: [], methods: []};
  const [winner, baseline] = [byId.get(raw.answer.policy), byId.get(raw.answer.baseline)];
  const {frontier, growth} = raw;
  return {
    id: raw.id,
    name: raw.title,
    workload: raw.workload,
    goal: raw.goal.kind,
    goalWords: raw.goal.words,
    ownSettings: raw.goal.own_settings ?? "",
    date: raw.date,
    hardwareName: raw.device.name,
    hardware: deviceWords(raw.device),
    versions: raw.versions,
    shortVersions: [`momadvise ${version}`, ...(raw.versions.torch ? [`torch ${raw.versions.torch}`] : [])],
    version,
    limit: raw.memory_limit_bytes,
    folder: raw.folder,
    command: raw.command ?? "",
    program: linesOf(raw, raw.call),
    asked: Object.entries(raw.asked ?? {}).filter(([name]) => name !== "goal" && !name.endsWith("_bytes")).map(([name, value]) => [name === "gpus" ? "GPUs" : sentence(name.replaceAll("_", " ")), value]),
    notes: [...(raw.complete === false ? ["The search was interrupted; a run of the same command continues it."] : []), ...(raw.notes ?? [])],
    missing: raw.missing ?? [],
    timings: Object.entries(raw.time_spent ?? {}),
    stopped: raw.stopped_because ?? "",
    refused: raw.refused ?? [],
    baseline,
    policies,
    answer: readAnswer(raw, winner, baseline),
    curves: (raw.throughput ?? []).map((one) => readCurve(one, policies)),
    timelines: (raw.memory_over_step ?? []).map((one) => readTimeline(one, named(one.policy))),
    notDivided: raw.not_divided ?? [],
    steps: (raw.time_of_step ?? []).map((one) => ({...one, of: named(one.policy)})),
    places: (frontier?.places ?? []).map((one, at) => readPlace(one, named(one.policy), at === frontier.knee)),
    preference: limitsOf(frontier),
    price: frontier ? `${usd(frontier.usd_per_hour)} per device-hour (${frontier.price_source})` : null,
    sizes: (growth?.places ?? []).map((one) => readSize(one)),
    floor: growth?.floor_samples_per_second ?? null,
    comparisons: raw.comparisons ?? [],
    course: (raw.course ?? []).map((one) => ({...one, of: named(one.policy), at: one.ended_at_seconds, best: one.best ? named(one.best) : null})),
  };
}

function deviceWords(device) {
  const count = device.count > 1 ? `${device.count} x ` : "";
  const more = [device.compute_capability && `compute capability ${device.compute_capability}`, device.driver && `driver ${device.driver}`];
  const cores = `${device.host_cores} host ${device.host_cores === 1 ? "core" : "cores"}`;
  return [`${count}${device.name}, ${bytes(device.memory_bytes)}`, ...more, cores].filter(Boolean).join(", ");
}

/** The text whose lines have these numbers. */
function linesOf(raw, numbers) {
  return numbers?.length ? `${numbers.map((one) => raw.lines[one]).join("\n")}\n` : "";
}

/** The reader's own limits, of one iteration: a deadline and a whole run's cost are shared by its iterations. */
function limitsOf(frontier) {
  const iterations = frontier?.iterations ?? 1;
  const each = (whole) => (whole == null ? null : whole / iterations);
  return {latency: frontier?.max_latency_seconds ?? each(frontier?.deadline_seconds), cost: each(frontier?.max_cost_usd)};
}

function readPolicy(raw, study) {
  const measured = raw.samples_per_second;
  const shown = measured ?? raw.predicted_samples_per_second;
  const peak = raw.peak_bytes ?? raw.predicted_peak_bytes;
  const accumulated = raw.accumulation_steps ?? 1;
  return {
    ...raw,
    methods: raw.methods ?? [],
    roles: inOrder(raw.roles ?? []),
    notes: raw.notes ?? [],
    reason: raw.reason ?? "",
    batch: accumulated === 1 ? String(raw.micro_batch) : `${raw.micro_batch} x ${accumulated}`,
    deviceCount: raw.gpu_count ?? 1,
    rate: shown?.value,
    low: shown?.low,
    high: shown?.high,
    source: shown?.source,
    measured: measured != null,
    peak: peak?.value,
    peakSource: peak?.source,
    limit: raw.limit_bytes ?? study.memory_limit_bytes,
    parts: raw.memory ? memoryParts(raw.memory) : null,
    cost: raw.cost_usd?.value,
    drift: raw.loss_drift,
    wrapperText: linesOf(study, raw.wrapper),
    program: linesOf(study, raw.call),
    verifyProgram: linesOf(study, raw.verify_call),
  };
}

function readAnswer(raw, winner, baseline) {
  const {answer} = raw;
  const {verdict} = answer;
  return {
    headline: answer.headline,
    figures: keyFigures(raw, winner, baseline),
    state: verdict?.state ?? "not run",
    confirmation: verdict?.words ?? "",
    why: answer.why ?? [],
    apply: answer.apply_lines?.length ? [{label: "In your training", text: `${answer.apply_lines.flatMap(withCommentAbove).join("\n")}\n`}] : [],
    commands: [
      ...Object.entries(answer.calls ?? {}).map(([label, numbers]) => ({label: sentence(label), text: linesOf(raw, numbers)})),
      ...Object.entries(answer.commands ?? {}).map(([label, text]) => ({label: sentence(label), text})),
    ],
    files: [
      {label: "wrapper.py", text: linesOf(raw, answer.wrapper)},
      {label: "policy.yaml", text: linesOf(raw, answer.policy_file)},
    ].filter((one) => one.text),
    paths: Object.entries(answer.files ?? {}),
    winner,
    gain: answer.gain?.words,
  };
}

/** On a narrow screen a comment behind its statement would be cut after its sign. */
function withCommentAbove(line) {
  const at = line.lastIndexOf("  # ");
  return at < 0 ? [line] : [line.slice(at + 2), line.slice(0, at)];
}

/** With a capital. */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function keyFigures(raw, winner, baseline) {
  const {gain} = raw.answer;
  const shown = [];
  if (gain && winner !== baseline) {
    const cost = gain.metric === "cost";
    const value = gain.at_least ? `≥ ${times(gain.times.low)}` : times(gain.times.value);
    shown.push({value: cost ? signed(gain.times.value - 1) : value, under: cost ? "cost of an iteration, against the baseline" : gain.words.replace(/^(at least )?[\d.,]+ times /, "")});
  }
  if (winner?.rate != null) {
    shown.push({
      value: significant(winner.rate),
      under: `samples/s ${[spread(winner.rate, winner.low, winner.high), baseline && baseline !== winner && `baseline ${significant(baseline.rate)}`].filter(Boolean).join("; ")}`,
    });
  }
  if (raw.goal.kind === "cheapest" && winner?.cost != null) shown.push({value: usd(winner.cost * ITERATIONS), under: `for ${ITERATIONS} iterations`});
  if (raw.goal.kind === "bigger" && winner?.parameter_count != null) shown.push({value: parameters(winner.parameter_count), under: "parameters"});
  if (winner?.peak != null) shown.push({value: bytes(winner.peak), under: `peak memory, of ${bytes(winner.limit)}${winner.deviceCount > 1 ? " on each device" : ""}`});
  return shown;
}

function readCurve(raw, policies) {
  const roles = inOrder(new Set(policies.filter((one) => one.combination === raw.combination).flatMap((one) => one.roles)));
  const read = (one) => ({
    batch: one.micro_batch, samples: one.batch, policy: one.policy,
    rate: one.samples_per_second.value, low: one.samples_per_second.low, high: one.samples_per_second.high,
    source: one.samples_per_second.source, peak: one.peak_bytes?.value,
  });
  return {
    name: raw.name, roles, tooLarge: raw.out_of_memory_at ?? null,
    points: (raw.points ?? []).map(read),
    predicted: (raw.predicted ?? []).map(read),
  };
}

/** What is alive when the backward pass begins, and what its work needs besides until the peak. */
function memoryParts({parameters: weights, buffers, gradients, optimizer_state, activations, workspace = 0, ...peaks}) {
  const kept = weights + buffers + gradients + optimizer_state + activations + workspace;
  const peak = Math.max(peaks.forward_peak, peaks.backward_peak, peaks.optimizer_peak);
  return {parameters: weights, gradients, optimizer_state, activations, temporaries: workspace + Math.max(0, peak - kept), other: buffers};
}

function readTimeline(raw, policy) {
  const {buffers, batch, ...parts} = raw.bytes;
  const count = Object.values(raw.bytes)[0]?.length ?? 0;
  const other = Array.from({length: count}, (_, at) => (buffers?.[at] ?? 0) + (batch?.[at] ?? 0));
  const moments = other.map((rest, at) => ({
    at,
    phase: raw.phases.findLast(([first]) => first <= at)?.[1] ?? "",
    parts: {...Object.fromEntries(Object.entries(parts).map(([part, values]) => [part, values[at]])), other: rest},
  }));
  const rest = `, micro-batch ${raw.micro_batch}${roleWords(policy)}`;
  return {...raw, operator: (raw.operator ?? "").replace(/\.default$/, ""), name: `${policy.name}${rest}`, of: policy.name, deviceCount: policy.deviceCount ?? 1, rest, moments, limit: raw.limit_bytes};
}

function readPlace(raw, policy, knee) {
  return {
    name: policy.name, batch: policy.batch, roles: policy.roles, devices: raw.gpu_count, knee,
    cost: raw.cost_usd.value, costSource: raw.cost_usd.source, latency: raw.latency_seconds.value, source: raw.latency_seconds.source,
    frontier: raw.on_frontier ?? false, insideNoise: raw.inside_noise ?? false,
  };
}

function readSize(raw) {
  return {
    line: raw.who, size: raw.size, count: raw.parameter_count, outcome: raw.outcome, reason: raw.reason ?? "",
    rate: raw.samples_per_second?.value, low: raw.samples_per_second?.low, high: raw.samples_per_second?.high,
    source: raw.samples_per_second?.source, samples: raw.samples_per_step, peak: raw.peak_bytes?.value, peakSource: raw.peak_bytes?.source,
  };
}

const ROLES = ["winner", "baseline", "hand-tuned"];

function inOrder(roles) {
  return [...roles].sort((a, b) => ROLES.indexOf(a) - ROLES.indexOf(b));
}

/** " (winner, baseline)", or nothing. */
function roleWords({roles}) {
  return roles.length ? ` (${roles.join(", ")})` : "";
}
