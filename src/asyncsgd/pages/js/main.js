// Puts everything where the page has left room for it.

const RANGE = "Means of consecutive updates; shaded from the smallest to the largest";

function metricCharts(host, data, shared) {
  for (const metric of data.metrics) {
    const lines = metric.lines.map((line) => ({ ...line, name: data.runs[line.run].name }));
    const marks = metric.target === null ? [] : [{ y: metric.target, label: `target ${formatNumber(metric.target)}` }];
    host.append(new Chart({ title: metric.name, log: metric.log, lines, marks }, shared).element);
  }
}

// Levels of a chart, with one label for those that read the same.
function together(named) {
  const found = new Map();
  for (const [name, y] of named.filter(([, y]) => y !== null)) {
    const words = formatNumber(y);
    if (found.has(words)) found.get(words).names.push(name);
    else found.set(words, { y, names: [name] });
  }
  return [...found].map(([words, { y, names }]) => ({ y, label: `${names.join(", ")} ${words}` }));
}

function delayCharts(host, data, shared) {
  const alone = data.runs.length === 1 ? data.runs[0].delays : null;
  const { average = null, maximum, concurrency, mean_concurrency } = alone || {};
  const marks = average === null ? [] : [
    { x: average, label: `τ avg ${formatNumber(average)}` },
    { x: maximum, label: `τ max ${formatNumber(maximum)}` },
  ];
  const counts = data.runs.map(({ name, histogram }, run) => ({ run, name, counts: histogram }));
  const words = { title: "How late updates came", note: "Share of the jobs by delay" };
  host.append(new Bars({ ...words, ranges: data.ranges, lines: counts, marks }, shared).element);
  const plain = alone ? {} : { low: null, high: null };  // shades of several runs would hide each other
  const lines = data.runs.map(({ name, delay }, run) => ({ run, name, ...delay, ...plain }));
  const named = [["τ avg", average], ["τ max", maximum], ["τ C", concurrency], ["τ̄ C", mean_concurrency]];
  const levels = alone ? together(named) : [];
  const note = alone ? RANGE : "Means of consecutive updates";
  host.append(new Chart({ title: "Delay over the run", note, log: false, lines, marks: levels }, shared).element);
}

function stepChart(host, data, shared) {
  const lines = data.runs.map(({ name, step }, run) => ({ run, name, ...step }));
  host.append(new Chart({ title: "Step over the run", note: RANGE, log: false, lines }, shared).element);
}

// What the charts run over: iterations, or seconds if there is a clock.
function axisChoice(host, shared) {
  const options = [["iteration", "iterations"], ["time", "seconds"]];
  host.before(choice("what the charts run over", options, shared.axis, (axis) => {
    shared.axis = axis;
    shared.charts.forEach((chart) => chart.draw());
  }));
}

// Names of the runs, as buttons that hide and show them in all charts.
function legend(host, data, shared) {
  const toggle = (run) => {
    if (!shared.hidden.delete(run)) shared.hidden.add(run);
    for (const button of document.querySelectorAll(`.legend [data-run="${run}"]`))
      button.setAttribute("aria-pressed", String(!shared.hidden.has(run)));
    shared.charts.forEach((chart) => chart.draw());
  };
  data.runs.forEach(({ name }, run) => {
    const css = style(run), kind = run % DASHES.length;
    const sample = draw("svg", { width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" },
      draw("path", { class: `line ${css}`, d: "M0,6H34", "stroke-dasharray": DASHES[kind] }),
      draw("path", { class: `sign ${css}`, d: MARKS[kind], transform: "translate(17,6)" }));
    const state = { type: "button", "aria-pressed": "true", "data-run": run, onclick: () => toggle(run) };
    host.append(make("button", state, sample, name));
  });
}

// Tables whose headings are buttons: a click sorts by that column, another one the other way round.
function sortable(table) {
  const body = table.tBodies[0], headings = [...table.querySelectorAll("thead th")];
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1);
  headings.forEach((heading, column) => {
    const value = ({ cells }) => {
      const text = cells[column].dataset.value ?? cells[column].textContent, number = Number(text);
      return text === "" || Number.isNaN(number) ? text : number;
    };
    const sort = () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1)));
    };
    heading.replaceChildren(make("button", { type: "button", class: "sort", onclick: sort }, heading.textContent));
  });
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = (name) => document.querySelector(`[data-part="${name}"]`);
  const timed = data.metrics.some(({ lines }) => lines.some((line) => line.time.some((time) => time !== null)));
  const several = data.runs.length > 1;
  theme.read();
  const shared = { axis: several && timed ? "time" : "iteration", hidden: new Set(), charts: [] };
  if (several) document.querySelectorAll(".legend").forEach((host) => legend(host, data, shared));
  if (place("metrics") && timed) axisChoice(place("metrics"), shared);
  if (place("metrics")) metricCharts(place("metrics"), data, shared);
  if (place("delays")) delayCharts(place("delays"), data, shared);
  if (place("steps")) stepChart(place("steps"), data, shared);
  const { timelines, recolour } = place("timelines") ? deck(place("timelines"), place("key"), data) : { timelines: [] };
  document.querySelectorAll("table.sortable").forEach(sortable);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    theme.read();
    recolour?.();
    timelines.forEach((timeline) => timeline.resize());
  });
  // Perhaps the window has moved to a finer screen.
  window.addEventListener("resize", () => timelines.forEach((timeline) => timeline.resize()));
  window.asyncsgd = { data, timelines, charts: shared.charts };  // for a console, and for tests
}

start();
