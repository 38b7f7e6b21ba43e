// Tables that are wider than the window: each row becomes a list of its cells, so that nobody has to scroll sideways.

/** A table in its frame, which is fitted to the frame whenever that gets wider or narrower. */
function fittedTable(label, table) {
  return el("div", {class: "scroll fitted", tabindex: "0", role: "group", "aria-label": label}, table);
}

/** Roles that a table, a row, or a cell has anyway, until it is laid out as something else. */
const TABLE_ROLES = {table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", td: "cell"};
function tableElement(tag, attributes = {}, ...children) {
  const role = tag === "th" ? (attributes.scope === "row" ? "rowheader" : "columnheader") : TABLE_ROLES[tag];
  return el(tag, {role, ...attributes}, ...children);
}

const tableWidths = typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => {
  requestAnimationFrame(() => entries.forEach(({target}) => fitTable(target)));
});

/** Fit all tables that are on the page by now. */
function fitTables() {
  tableWidths?.disconnect();
  for (const frame of document.querySelectorAll(".fitted")) {
    fitTable(frame);
    tableWidths?.observe(frame);
  }
}

function fitTable(frame) {
  const width = String(frame.clientWidth);
  if (width === "0" || frame.dataset.width === width) return;
  frame.dataset.width = width;
  const {classList} = frame.querySelector("table");
  classList.remove("stacked");
  classList.toggle("stacked", frame.scrollWidth > frame.clientWidth);
}
