"use strict";
// Everything on the page is made here, of elements and text nodes: no string of the document is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `attributes`: `class`, `id`, `aria-*` ..., and `on: {click: f}`; children: elements, text, or nothing. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return fill(made, attributes, children.flat(Infinity).map(unbroken));
}

/** A text whose options stay whole: a browser would end a line within `--time-limit`. */
function unbroken(child) {
  if (child == null || child === false || child instanceof Node) return child;
  const parts = String(child).split(/(--[a-z][a-z-]*)/);
  return parts.length === 1 ? child : parts.map((one, at) => (at % 2 ? el("span", {class: "whole"}, document.createTextNode(one)) : one));
}

/** The same in SVG. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, {on = {}, ...attributes}, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const [type, listener] of Object.entries(on)) made.addEventListener(type, listener);
  made.append(...children.flat(Infinity).filter((one) => one != null && one !== false).map(node));
  return made;
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** Ids that are unique on the page. */
let lastId = 0;
function newId(stem) {
  lastId += 1;
  return `${stem}-${lastId}`;
}

/** A table of plain cells: `columns` are {label, cell(row), number}. */
function plainTable(caption, columns, rows) {
  const head = el("tr", {}, columns.map((one) => el("th", {scope: "col", class: one.number && "number"}, one.label)));
  const body = rows.map((row) =>
    el("tr", {}, columns.map((one) => el("td", {class: one.number && "number"}, one.cell(row) ?? "–"))),
  );
  return el(
    "div",
    {class: "scroll", tabindex: "0", role: "group", "aria-label": caption},
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)),
  );
}

/** Definitions: [term, description], those without a description left out. */
function definitions(pairs) {
  const shown = pairs.filter(([, description]) => description != null && description !== "");
  return el("dl", {class: "definitions"}, shown.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));
}

/** A button that copies a text, and says so; where the clipboard is closed it selects the text for Ctrl-C. */
function copyButton(text, what, shown = null) {
  const words = el("span", {}, "Copy");
  const button = el("button", {type: "button", class: "copy", "aria-label": `Copy ${what}`}, words);
  button.addEventListener("click", async () => {
    const copied = (await toClipboard(text)) || bySelection(text);
    if (!copied && shown) selectText(shown);
    const result = copied ? "Copied" : "Selected: press Ctrl-C";
    words.textContent = result;
    announce(`${what}: ${result}`);
    setTimeout(() => (words.textContent = "Copy"), 2000);
  });
  return button;
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // a page opened as a file has no clipboard in some browsers
  }
}

function bySelection(text) {
  const field = el("textarea", {class: "off-screen", readonly: true});
  field.value = text;
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  let copied = false;
  try {
    copied = document.execCommand("copy");
  } catch {
    copied = false;
  }
  field.remove();
  before?.focus();
  return copied;
}

function selectText(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

/** Say it to a screen reader. */
function announce(text) {
  document.getElementById("announcements").textContent = text;
}

/** A block of code with its button. */
function codeBlock(label, text, kind = "") {
  const code = el("code", {}, text);
  return el(
    "figure",
    {class: `code ${kind}`},
    el("figcaption", {}, el("span", {}, label), copyButton(text, label, code)),
    el("pre", {tabindex: "0", role: "group", "aria-label": label}, code),
  );
}
