// The timelines of a page: they share the clock, the colours and the buttons.

function deck(host, key, data) {
  const all = data.runs.map((run) => new Jobs(run.jobs));
  const scale = scaleOf(all);
  all.forEach((jobs) => jobs.colour(scale));
  // Runs without a clock count iterations, and so have a window of their own.
  const windows = [true, false].map((clock) => all.filter((jobs) => jobs.clock === clock)).map((group) =>
    new Window(Math.min(...group.map((jobs) => jobs.since)), Math.max(...group.map((jobs) => jobs.horizon))));
  const found = all.map((jobs, place) => {
    const { name } = data.runs[place];
    const box = make("div", { class: "timeline" });
    if (all.length > 1) box.append(make("h3", {}, name));
    if (jobs.count < jobs.total) {
      const words = `The last ${formatNumber(jobs.count)} of ${formatNumber(jobs.total)} jobs.`;
      box.append(make("p", { class: "why" }, words));
    }
    host.append(box);
    return new Timeline(box, name, jobs, windows[jobs.clock ? 0 : 1]);
  });
  host.prepend(toolbar(found, [...new Set(found.map((timeline) => timeline.window))]));
  const recolour = () => colourKey(key, all, scale);
  recolour();
  [true, false].forEach((clock, k) => firstLook(all.filter((jobs) => jobs.clock === clock), windows[k]));
  return { timelines: found, recolour };
}

// Buttons for what keys, wheel and fingers do too.
function toolbar(found, windows) {
  const each = (action) => found.forEach((timeline) => {
    action(timeline);
    timeline.request();
  });
  const button = (words, label, action) =>
    make("button", { type: "button", "aria-label": label, title: label, onclick: action }, words);
  const parts = [
    button("−", "zoom out", () => windows.forEach((time) => time.zoom(2))),
    button("+", "zoom in", () => windows.forEach((time) => time.zoom(0.5))),
    button("◂", "earlier", () => windows.forEach((time) => time.pan(-time.span / 3))),
    button("▸", "later", () => windows.forEach((time) => time.pan(time.span / 3))),
    button("whole run", "show the whole run", () => {
      each((timeline) => timeline.rows.fit());
      windows.forEach((time) => time.fit());
    }),
  ];
  if (found.some((timeline) => timeline.rows.count > 12))
    parts.push(
      button("taller", "taller rows", () => each((timeline) => timeline.rows.zoom(0.5))),
      button("lower", "lower rows", () => each((timeline) => timeline.rows.zoom(2))));
  const orders = [["number", "workers by number"], ["slow", "slowest first"], ["late", "latest first"]];
  if (found.some((timeline) => timeline.rows.count > MANY)) orders.unshift(...orders.splice(1, 1));
  const options = orders.map(([value, words]) => make("option", { value }, words));
  const sort = (event) => each((timeline) => timeline.sort(event.target.value));
  parts.push(make("select", { "aria-label": "order of the workers", onchange: sort }, ...options));
  return make("div", { class: "buttons", role: "group", "aria-label": "what the timeline shows" }, ...parts);
}

// What colours and patterns mean; only outcomes that occur.
function colourKey(host, all, [low, high]) {
  const largest = Math.max(...all.map((jobs) => jobs.delay.reduce((most, delay) => Math.max(most, delay), 0)));
  const ramp = make("span", { class: "ramp", "aria-hidden": "true" });
  const stops = theme.fills.filter((_, k) => k % 16 === 0 || k === SHADES - 1);
  ramp.style.background = `linear-gradient(90deg, ${stops.join(",")})`;
  const left = low ? `up to ${formatNumber(low)}` : "0";
  const right = formatNumber(high) + (high < largest ? " and more" : "");
  const parts = [
    make("span", {}, `delay ${left} `, ramp, ` ${right}`),
    make("span", {}, make("i", { class: "waiting" }), "waiting"),
  ];
  for (const code of [2, 3, 4, 5, 0]) {
    if (!all.some((jobs) => jobs.outcome.includes(code))) continue;
    const tile = make("canvas", { width: 44, height: 28, "aria-hidden": "true" });
    const pen = tile.getContext("2d");
    pen.scale(2, 2);
    pen.font = `10px ${GLYPH}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    paintBar(pen, { heat: [80], outcome: [code], delay: [0] }, 0, 0, 22, 0.5, 13, 10);
    parts.push(make("span", {}, tile, OUTCOMES[code]));
  }
  host.replaceChildren(...parts);
}

// Where to look first: some dozens of jobs of an ordinary worker, and the slowest one beside them.
function firstLook(all, time) {
  const often = window.innerWidth < 700 ? 14 : 30;
  let span = 0;
  for (const jobs of all) {
    if (jobs.workers.length > MANY || !jobs.count) return time.fit();
    const means = jobs.means(jobs.computed).sort((a, b) => a - b);
    const usual = means[means.length >> 1], slowest = means.at(-1);
    span = Math.max(span, often * usual, Math.min(2.2 * slowest, 2.5 * often * usual));
  }
  time.set(time.low, time.low + span);
}
