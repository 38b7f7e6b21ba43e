// The document as the pictures want it. All knowledge of the document's fields is here.

function readStudies({studies}) {
  return studies.map(readStudy);
}

function readStudy(raw) {
  const goal = raw.goal.kind;
  const policies = raw.policies.map(readPolicy);
  const byId = new Map(policies.map((one) => [one.id, one]));
  const winner = policies.find((one) => one.roles.includes("winner"));
  const baseline = policies.find((one) => one.roles.includes("baseline"));
  return {
    name: `${raw.workload}, ${raw.goal.kind}`,
    workload: raw.workload,
    goal,
    goalWords: raw.goal_words,
    date: raw.date,
    hardwareName: raw.hardware.name,
    hardware: raw.hardware.name,
    versions: raw.versions,
    shortVersions: ["momadvise", "torch"].filter((one) => raw.versions[one]).map((one) => `${one} ${raw.versions[one]}`),
    limit: raw.memory_limit_bytes,
    folder: raw.folder,
    command: raw.command,
    notes: raw.notes,
    timings: Object.entries(raw.timings ?? {}),
    facts: [],
    stopped: raw.stopped_because,
    refused: raw.refused,
    baselineRate: baseline?.rate,
    policies,
    answer: readAnswer(raw, winner, baseline),
    curves: raw.throughput.map(({points, ...curve}) => ({...curve, points: points.map((one) => ({...one, rate: one.samples_per_second}))})),
    timelines: raw.timeline,
    steps: [],
    points: [],
    preference: {latency: null, cost: null},
    sizes: [],
    floor: null,
    comparisons: [],
    course: raw.course.map((one) => ({...byId.get(one.policy), order: one.order})),
  };
}

function readAnswer(raw, winner, baseline) {
  return {
    label: "The answer",
    headline: raw.answer.headline,
    methods: raw.answer.methods,
    figures: [
      {value: times(raw.answer.gain), under: `as fast as the baseline, ${spread(winner.rate, winner.low, winner.high) ?? ""}`},
      {value: rate(winner.rate), under: `instead of ${rate(baseline?.rate)}`},
      {value: bytes(winner.peak), under: `peak memory of ${bytes(raw.memory_limit_bytes)}`},
    ],
    state: raw.answer.confirmed,
    confirmation: raw.answer.confirmation,
    why: raw.answer.why,
    apply: [{label: "In your training", text: raw.answer.apply.snippet}, ...raw.answer.apply.commands],
    files: [{label: "wrapper.py", text: raw.answer.apply.wrapper}, {label: "policy.yaml", text: raw.answer.apply.policy}],
    rate: winner.rate,
    peak: winner.peak,
  };
}

function readPolicy(raw) {
  const peak = raw.peak_bytes ?? raw.predicted_peak_bytes;
  return {
    id: raw.id, name: raw.name, roles: raw.roles, rank: raw.rank, batch: raw.batch_words,
    samples: raw.micro_batch * raw.accumulation_steps * raw.gpu_count, devices: raw.gpu_count,
    rate: raw.samples_per_second?.value, low: raw.samples_per_second?.low, high: raw.samples_per_second?.high,
    steps: raw.timed_steps, stepSeconds: raw.step_seconds, source: raw.source,
    peak, peakSource: raw.peak_bytes == null ? "predicted" : "measured", parts: raw.memory,
    fidelity: raw.fidelity, drift: raw.loss_drift, notCompared: raw.not_compared, notes: raw.notes,
    outcome: raw.outcome, reason: raw.reason, parameters: raw.parameter_count, cost: raw.cost_usd,
    commands: [], files: [],
  };
}
