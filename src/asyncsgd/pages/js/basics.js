// Elements, numbers in words, ticks of axes. Text from outside only ever becomes a text node.

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// Four digits, as the tables have them; whole numbers in full.
function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 7 });
}

const UNITS = [  // up to so many seconds in units of so many
  [1e-9, 1, "s"], [1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [600, 1, "s"], [36000, 60, "min"], [Infinity, 3600, "h"],
];

// Seconds, in the unit that suits `scale` (the value itself if left out).
function formatTime(seconds, scale = seconds, digits = 4) {
  if (seconds === null || Number.isNaN(seconds)) return "–";
  const size = Math.abs(scale);
  const [, unit, name] = UNITS.find(([below]) => size < below);
  const number = Number((seconds / unit).toPrecision(digits));
  return `${number.toLocaleString("en-US", { maximumFractionDigits: 6 })} ${name}`;
}

// Round numbers between low and high, about `wanted` of them.
function niceTicks(low, high, wanted) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

// Seconds that are round numbers in the unit in which they are shown.
function timeTicks(low, high, wanted) {
  const size = Math.max(Math.abs(low), Math.abs(high)), [, unit] = UNITS.find(([below]) => size < below);
  return niceTicks(low / unit, high / unit, wanted).map((tick) => tick * unit);
}

function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const factors = last - first <= 1 ? [1, 2, 3, 5] : last - first <= 2 ? [1, 3] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every)
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  return ticks.length > 1 ? ticks : [low, high];
}

// The first place in `values` (which rise) whose value is at least `wanted`.
function firstAtLeast(values, wanted, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Buttons of which one is pressed.
function choice(label, options, chosen, changed) {
  const buttons = options.map(([key, words]) =>
    make("button", { type: "button", "aria-pressed": String(key === chosen), onclick: () => press(key) }, words));
  const press = (key) => {
    options.forEach(([other], place) => buttons[place].setAttribute("aria-pressed", String(other === key)));
    changed(key);
  };
  return make("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}
