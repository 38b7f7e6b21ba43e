// Numbers as the terminal shows them (advisor/text/units.py): three significant digits, binary units for memory.

function threeDigits(amount) {
  return amount.toFixed(amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2);
}

/** A plain number, never in powers of ten. */
function significant(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 999.5) return Math.round(value).toLocaleString("en-US");
  if (size < 0.1 && size > 0) return value.toFixed(2 - Math.floor(Math.log10(size)));
  return `${value < 0 ? "-" : ""}${threeDigits(size)}`;
}

function fiveDigits(value) {
  return String(Number(value.toPrecision(5)));
}

/** A number on an axis: no more digits than it needs. */
function tick(value) {
  if (value >= 1e6) return parameters(value);
  return Number(value.toPrecision(3)).toLocaleString("en-US", {maximumSignificantDigits: 3, useGrouping: true});
}

function bytes(value) {
  if (value == null) return null;
  if (value < 1024) return `${Math.round(value)} B`;
  let amount = value;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    amount /= 1024;
    if (amount < 999.5 || unit === "TiB") return `${threeDigits(amount)} ${unit}`;
  }
  return null;
}

/** The unit in which an axis shows bytes up to `most`: [bytes, name]. */
function byteUnit(most) {
  const units = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
  return units.find(([size]) => most >= size) ?? units.at(-1);
}

function seconds(value) {
  if (value == null) return null;
  const [factor, unit] = value >= 0.9995 ? [1, "s"] : value >= 0.9995e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${threeDigits(value * factor)} ${unit}`;
}

/** The unit in which an axis shows seconds up to `most`: [seconds, name]. */
function secondUnit(most) {
  return most >= 1 ? [1, "s"] : most >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
}

function rate(value) {
  return value == null ? null : `${significant(value)} samples/s`;
}

function usd(value) {
  return value == null ? null : `$${significant(value)}`;
}

function percent(share) {
  if (share == null) return null;
  const size = Math.abs(share * 100);
  if (size === 0) return "0%";
  if (size < 0.0005) return "<0.001%";
  return `${size >= 9.95 ? Math.round(share * 100).toLocaleString("en-US") : (share * 100).toFixed(size >= 0.1 ? 1 : 3)}%`;
}

/** Half an interval relative to its value: "±1.9%". */
function spread(value, low, high) {
  if (low == null || high == null || !(value > 0)) return null;
  return `±${percent((high - low) / 2 / value)}`;
}

function parameters(count) {
  if (count == null) return null;
  for (const [factor, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) {
    if (count >= 0.9995 * factor) return `${tick(count / factor)} ${unit}`;
  }
  return tick(count);
}

function times(value) {
  return value == null ? null : `${value < 100 ? value.toFixed(2) : Math.round(value).toLocaleString("en-US")}×`;
}
