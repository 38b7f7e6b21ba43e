// Every policy that was tried or considered: sortable, filterable, each with its wrapper and its commands.

function policyTable(study) {
  const columns = policyColumns(study);
  const state = {column: columns[0], down: false, text: "", outcome: "", open: new Set()};
  const body = tableElement("tbody");
  const count = el("p", {class: "quiet small", role: "status", "aria-live": "polite"});
  const headers = columns.map((column) => header(column, state, () => update()));
  const update = () => {
    const shown = study.policies.filter((one) => passes(one, state)).sort(comparison(state));
    body.replaceChildren(...shown.flatMap((one) => policyRow(one, columns, state)));
    headers.forEach((one, at) => one.setAttribute("aria-sort", columns[at] === state.column ? (state.down ? "descending" : "ascending") : "none"));
    count.textContent = `${shown.length} of ${study.policies.length} policies`;
  };
  const card = el(
    "section",
    {class: "card policies", id: "policies", "aria-labelledby": "policies-title"},
    el("h3", {id: "policies-title"}, "Every policy"),
    el("p", {class: "lead small"}, "Measured, predicted or refused, each with its reason. Open one for its wrapper and what to run to measure exactly this policy, or to search its methods alone."),
    filters(study, state, update),
    count,
    fittedTable("Every policy", tableElement(
      "table",
      {},
      el("caption", {class: "off-screen"}, "Every policy that was tried or considered"),
      tableElement("thead", {}, tableElement("tr", {}, headers)),
      body,
    )),
  );
  update();
  return card;
}

/** Columns: what to show, and the value to sort by. Those that no policy has a value for are left out. */
function policyColumns(study) {
  const baseline = study.baseline?.rate;
  // Throughputs of models of different sizes do not compare.
  const own = study.goal === "bigger" ? study.baseline?.parameter_count : null;
  const faster = (one) => (one.measured && baseline ? one.rate / baseline - 1 : null);
  const gain = (one) => (own ? (one.parameter_count ? one.parameter_count / own - 1 : null) : faster(one));
  const marked = (one) => `${one.source === "measured" ? "" : "~"}${significant(one.rate)}`;
  const all = [
    {label: "#", value: (one) => one.rank, number: true, always: true},
    {label: "Policy", value: (one) => one.name, name: true, always: true},
    {label: "Batch", value: (one) => one.samples_per_step, show: (one) => one.batch, number: true, always: true},
    {label: "Devices", value: (one) => one.deviceCount, number: true, only: study.policies.some((one) => one.deviceCount > 1)},
    {label: "Samples/s", value: (one) => one.rate, show: marked, number: true, down: true},
    {label: "±", value: (one) => (one.low == null ? null : (one.high - one.low) / one.rate), show: (one) => spread(one.rate, one.low, one.high), number: true},
    {label: own ? "Size vs baseline" : "vs baseline", value: gain, show: (one) => signed(gain(one)), number: true, down: true},
    {label: "Peak", value: (one) => one.peak, show: (one) => `${one.peakSource === "measured" ? "" : "~"}${bytes(one.peak)}`, number: true},
    {label: `Cost of ${ITERATIONS}`, value: (one) => one.cost, show: (one) => usd(one.cost * ITERATIONS), number: true},
    {label: "Parameters", value: (one) => one.parameter_count, show: (one) => parameters(one.parameter_count), number: true, down: true, only: study.goal === "bigger"},
    {label: "Fidelity", value: (one) => one.observed_fidelity || one.fidelity},
    {label: "Loss drift", value: (one) => one.drift, show: (one) => driftWords(one.drift), number: true},
    {label: "Outcome", value: (one) => one.outcome, reason: true, always: true},
  ];
  return all.filter((one) => one.only !== false && (one.always || study.policies.some((policy) => present(one.value(policy)))));
}

function present(value) {
  return value != null && value !== "" && !Number.isNaN(value);
}

function driftWords(drift) {
  return drift >= 1e6 ? "infinite" : percent(drift);
}

function signed(share) {
  if (share == null) return null;
  return `${share >= 0 ? "+" : "−"}${percent(Math.abs(share))}`;
}

function header(column, state, update) {
  const arrow = el("span", {class: "arrow", "aria-hidden": "true"});
  const button = el("button", {type: "button"}, column.label, arrow);
  button.addEventListener("click", () => {
    state.down = state.column === column ? !state.down : Boolean(column.down);
    state.column = column;
    update();
  });
  const cell = tableElement("th", {scope: "col", class: column.number && "number", "aria-sort": "none"}, button);
  new MutationObserver(() => {
    arrow.textContent = {ascending: "↑", descending: "↓"}[cell.getAttribute("aria-sort")] ?? "";
  }).observe(cell, {attributeFilter: ["aria-sort"]});
  return cell;
}

/** Those without a value come last in both directions. */
function comparison({column, down}) {
  return (a, b) => {
    const [left, right] = [column.value(a), column.value(b)];
    if (!present(left) || !present(right)) return present(right) - present(left);
    const order = typeof left === "number" ? left - right : String(left).localeCompare(String(right));
    return down ? -order : order;
  };
}

function passes(policy, {text, outcome}) {
  if (outcome && outcome !== policy.outcome && !policy.roles.includes(outcome)) return false;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [policy.name, policy.batch, policy.outcome, policy.reason, policy.fidelity, policy.observed_fidelity, ...policy.roles].join(" ").toLowerCase();
  return words.every((one) => all.includes(one));
}

function filters(study, state, update) {
  const search = el("input", {type: "search", placeholder: "checkpoint bf16 …", autocomplete: "off", spellcheck: "false"});
  search.addEventListener("input", () => {
    state.text = search.value;
    update();
  });
  const outcomes = [...new Set(study.policies.map((one) => one.outcome))].sort();
  const select = el("select", {}, el("option", {value: ""}, "all"), outcomes.map((one) => el("option", {value: one}, one)));
  select.addEventListener("change", () => {
    state.outcome = select.value;
    update();
  });
  return el("div", {class: "filters", role: "search"}, el("label", {}, "Filter by words", search), el("label", {}, "Outcome", select));
}

function policyRow(policy, columns, state) {
  const detailId = `policy-${policy.id}`;
  const open = state.open.has(policy.id);
  const detail = tableElement("tr", {class: "detail", id: detailId, hidden: !open}, tableElement("td", {colspan: columns.length}));
  const show = () => {
    if (!detail.firstChild.firstChild) detail.firstChild.append(policyDetail(policy));
  };
  if (open) show();
  const toggle = el("button", {type: "button", class: "toggle", "aria-expanded": String(open), "aria-controls": detailId}, policy.name);
  toggle.addEventListener("click", () => {
    detail.hidden = !detail.hidden;
    toggle.setAttribute("aria-expanded", String(!detail.hidden));
    if (detail.hidden) state.open.delete(policy.id);
    else {
      state.open.add(policy.id);
      show();
    }
  });
  const cells = columns.map((column) => {
    if (column.name) return tableElement("td", {class: "name"}, policy.roles.map((role) => el("span", {class: `tag ${role === "winner" ? "winner" : ""}`}, role)), toggle);
    if (column.reason) return tableElement("td", {class: policy.reason && "reason", "data-label": column.label}, policy.outcome, policy.reason ? el("span", {class: "quiet"}, `: ${shortened(policy.reason, 110)}`) : "");
    const value = column.value(policy);
    const known = present(value);
    const shown = known ? (column.show ? column.show(policy) : value) : "–";
    return tableElement("td", {class: [column.number && "number", !known && "nothing"].filter(Boolean).join(" "), "data-label": column.label === "±" ? null : column.label}, shown);
  });
  return [tableElement("tr", {class: policy.roles.includes("winner") && "chosen"}, cells), detail];
}

function policyDetail(policy) {
  return el(
    "div",
    {class: "inside"},
    policy.reason && el("p", {}, policy.reason),
    policy.notes.map((one) => el("p", {class: "quiet"}, one)),
    definitions([
      ["Time of a step", policy.step_seconds == null ? null : `${seconds(policy.step_seconds.value)}${policy.timed_steps ? ` (median of ${policy.timed_steps} steps)` : ""}`],
      ["95% interval", policy.low == null ? null : `${interval(policy.low, policy.high)} samples/s`],
      ["Throughput", policy.rate == null ? "not run" : `${rate(policy.rate)}, ${SOURCES[policy.source].words}`],
      ["Speedup in turns", policy.speedup == null ? null : `${times(policy.speedup.value)} the baseline ${spread(policy.speedup.value, policy.speedup.low, policy.speedup.high) ?? ""}`],
      ["Compared", policy.comparison],
      ["Peak", policy.peak == null ? null : `${bytes(policy.peak)}, ${SOURCES[policy.peakSource].words}`],
      ["Loss drift", policy.drift == null ? null : `${driftWords(policy.drift)} from plain training`],
      ["Devices", policy.devices],
    ]),
    policy.verify_command && codeBlock(`Exactly this policy, measured ${policy.deviceCount > 1 ? "on its devices" : "beside the baseline"}`, policy.verify_command, "wrapped"),
    policy.command && codeBlock("A search of its methods alone", policy.command, "wrapped"),
    policy.verifyProgram && codeBlock("Exactly this policy, measured by a program", policy.verifyProgram),
    policy.program && codeBlock("A search of its methods alone, by a program", policy.program),
    policy.wrapperText && codeBlock("Its wrapper.py", policy.wrapperText),
  );
}
