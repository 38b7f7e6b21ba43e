// The answer in one screen: what to do, how much it brings, how sure, how to apply it.

function answerCard(study) {
  const {answer} = study;
  return el(
    "section",
    {class: "card", id: "answer", "aria-labelledby": "answer-title"},
    el(
      "div",
      {class: "answer"},
      el("div", {}, el("p", {class: "label"}, "The answer"), el("h2", {id: "answer-title", class: answer.headline.length > 80 && "long"}, answer.headline), figureList(answer), confirmationBox(answer)),
      el("div", {class: "apply"}, el("p", {class: "label"}, "Apply it"), answer.apply.map(({label, text}) => codeBlock(label, text, "wrapped")), moreToApply(answer)),
    ),
    reasons(answer),
  );
}

function figureList({figures}) {
  return el("div", {class: "figures"}, figures.map(({value, under}) =>
    el("div", {}, el("p", {class: "value"}, value), el("p", {class: "under"}, under))));
}

const STATES = {
  confirmed: {title: "Confirmed.", shape: "M4 10.5l4 4 8-9"},
  "not confirmed": {title: "Not confirmed.", shape: "M10 4v7M10 14.5v1", look: "unsure"},
  "not run": {title: "Not run.", shape: "M5 5l10 10M15 5L5 15", look: "failed"},
};

function confirmationBox({state, confirmation}) {
  if (!confirmation) return null;
  const {title, shape, look = state} = STATES[state];
  const mark = svg("svg", {width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": "true"},
    svg("path", {d: shape, stroke: "currentColor", "stroke-width": 2.25, fill: "none", "stroke-linecap": "round", "stroke-linejoin": "round"}));
  const [, begin, rest] = /^((?:Confirmed|Not confirmed|Not run)[^:.]*[:.])\s+(.*)$/s.exec(confirmation) ?? [null, title, confirmation];
  return el("div", {class: `status ${look}`}, mark, el("p", {}, el("strong", {}, begin), " ", rest));
}

function reasons({why}) {
  if (!why.length) return null;
  return el("div", {class: "why"}, el("p", {class: "label"}, "Why"), el("ul", {}, why.map((one) => el("li", {}, one))));
}

/** The files themselves, the commands that go with them, and where they lie. */
function moreToApply({files, commands, paths}) {
  return [
    ...files.map(({label, text}) => lazyDetails(label, () => codeBlock(label, text))),
    commands.length > 0 && lazyDetails("Commands: check, verify, export", () => el("div", {}, commands.map(({label, text}) => codeBlock(label, text, "wrapped")))),
    paths.length > 0 && lazyDetails("Where the files are", () => definitions(paths)),
  ];
}
