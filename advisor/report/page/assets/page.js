// Reads the document that the page carries and puts the page together.

/** One mistake of ours must not cost the reader the rest of the page. */
function guarded(make, study) {
  try {
    return make(study);
  } catch (error) {
    console.error(error);
    return {title: make.name, missing: `This could not be drawn (${error.message}).`};
  }
}

function start() {
  const text = document.getElementById("document").textContent;
  const studies = readStudies(JSON.parse(text));
  let chosen = 0;
  const main = document.getElementById("main");
  const head = document.getElementById("head");
  const show = (at) => {
    chosen = at;
    const study = studies[chosen];
    head.replaceChildren(...headParts(studies, chosen, show));
    document.title = `momadvise: ${studies.map((one) => one.name).join("; ")}`;
    main.replaceChildren(...(studies.length > 1 ? [comparisonSection(studies)] : []), ...studyParts(study, studies.length > 1));
    document.getElementById("foot").replaceChildren(footWords(study));
    drawAll();
  };
  show(0);
  addEventListener("beforeprint", drawForPrint);
  addEventListener("afterprint", drawAll);
}

function headParts(studies, chosen, show) {
  const study = studies[chosen];
  const tabs = studies.length < 2 ? null : el("div", {class: "tabs", role: "group", "aria-label": "Study"}, studies.map((one, at) =>
    el("button", {type: "button", "aria-pressed": String(at === chosen), on: {click: () => {
      show(at);
      announce(`Shown: ${one.name}`);
      document.querySelectorAll(".tabs button")[at].focus();
    }}}, one.name)));
  return [
    el("h1", {}, studies.length > 1 ? "momadvise: several studies" : `${study.workload} on ${study.hardwareName}`),
    el("p", {class: "conditions"}, [study.goalWords, study.date, ...study.shortVersions].filter(Boolean).map((one) => el("span", {}, one))),
    tabs,
    el("nav", {class: "sections", "aria-label": "On this page"}, [
      studies.length > 1 && ["compare", "Side by side"], ["answer", "Answer"], ["evidence", "Pictures"], ["policies", "Every policy"], ["conditions", "Conditions"],
    ].filter(Boolean).map(([id, words]) => el("a", {href: `#${id}`}, words))),
  ].filter(Boolean);
}

function studyParts(study, several) {
  const goal = {cheapest: costPicture, bigger: sizePicture}[study.goal];
  return [
    several && el("div", {class: "group", id: "study-title"}, el("h2", {}, study.name)),
    answerCard(study),
    el("div", {class: "group", id: "evidence"}, el("h2", {}, "The evidence"), el("p", {}, "Filled marks were timed at length, hollow circles in a few steps; diamonds and dashed lines are predicted, triangles simulated. Point at a mark for its values.")),
    pictureGrid([
      ...(goal ? [goal] : []),
      throughputPicture,
      timelinePicture,
      peaksPicture,
      stepPicture,
      gradientPicture,
      lossPicture,
      coursePicture,
    ].map((make) => guarded(make, study)), study.missing),
    el("div", {class: "group tried"}, el("h2", {}, "Everything that was tried")),
    policyTable(study),
    refusedCard(study),
    conditionsCard(study),
  ].flat().filter(Boolean);
}

function refusedCard({refused}) {
  if (!refused.length) return null;
  return el("section", {class: "card", "aria-labelledby": "refused-title"},
    el("h3", {id: "refused-title"}, "Not applicable here"),
    el("p", {class: "lead small"}, `${refused.length} settings of the catalogue were not tried, each for its reason.`),
    lazyDetails("Settings and reasons", () => plainTable("Settings that do not apply", [
      {label: "Setting", cell: (one) => one.setting},
      {label: "Why not", cell: (one) => one.reason},
    ], refused)));
}

function conditionsCard(study) {
  return el("section", {class: "card", id: "conditions", "aria-labelledby": "conditions-title"},
    el("h3", {id: "conditions-title"}, "Conditions of the measurement"),
    definitions([
      ["Workload", study.workload],
      ["Device", study.hardware],
      ["Memory limit", bytes(study.limit)],
      ["Date", study.date],
      ["Study folder", study.folder],
      ...study.asked,
      ...Object.entries(study.versions),
    ]),
    study.notes.length > 0 && el("ul", {class: "notes"}, study.notes.map((one) => el("li", {}, one))),
    study.timings.length > 0 && lazyDetails("Where the time of the run went", () => plainTable("Time of the run", [
      {label: "Activity", cell: ([what]) => what},
      {label: "Time", cell: ([, value]) => seconds(value), number: true},
    ], study.timings)),
    study.command && codeBlock("The command of this study", study.command, "wrapped"),
    study.program && codeBlock("The program of this study", study.program));
}

function footWords(study) {
  return el("p", {}, `Written by momadvise ${study.version}. The page holds everything it shows and opens no connection. Drawn with Observable Plot and D3.`);
}

start();
