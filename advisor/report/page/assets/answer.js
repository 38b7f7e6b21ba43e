// The answer in one screen: what to do, how much it brings, how sure, how to apply it.

function answerCard(study) {
  const {answer} = study;
  return el(
    "section",
    {class: "card", id: "answer", "aria-labelledby": "answer-title"},
    el(
      "div",
      {class: "answer"},
      el("div", {}, el("p", {class: "label"}, answer.label), el("h2", {id: "answer-title"}, answer.headline), keyFigures(study), confirmationBox(answer)),
      el("div", {class: "apply"}, el("p", {class: "label"}, "Apply it"), answer.apply.map(({label, text}) => codeBlock(label, text)), moreFiles(answer)),
    ),
    reasons(answer),
  );
}

function keyFigures({answer}) {
  return el("div", {class: "figures"}, answer.figures.map(({value, under}) =>
    el("div", {}, el("p", {class: "value"}, value), el("p", {class: "under"}, under))));
}

const STATES = {
  confirmed: {title: "Confirmed.", shape: "M4 10.5l4 4 8-9"},
  unsure: {title: "Not confirmed.", shape: "M10 4v7M10 14.5v1"},
  failed: {title: "Failed.", shape: "M5 5l10 10M15 5L5 15"},
};

function confirmationBox({state, confirmation}) {
  if (!confirmation) return null;
  const {title, shape} = STATES[state];
  const mark = svg("svg", {width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": "true"},
    svg("path", {d: shape, stroke: "currentColor", "stroke-width": 2.25, fill: "none", "stroke-linecap": "round", "stroke-linejoin": "round"}));
  const rest = confirmation.replace(/^(Not confirmed|Confirmed)[:.]\s*/, "");
  return el("div", {class: `status ${state}`}, mark, el("p", {}, el("strong", {}, title), " ", rest.charAt(0).toUpperCase() + rest.slice(1)));
}

function reasons({why}) {
  if (!why.length) return null;
  return el("div", {class: "why"}, el("p", {class: "label"}, "Why"), el("ul", {}, why.map((one) => el("li", {}, one))));
}

function moreFiles({files}) {
  return files.map(({label, text}) => lazyDetails(label, () => codeBlock(label, text)));
}
