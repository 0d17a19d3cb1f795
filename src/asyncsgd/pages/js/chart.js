// Lines over iterations or seconds.

class Chart extends Plot {
  // spec: log, marks: [{y, label}], lines: [{run, name, iteration, time, value, low?, high?}]
  constructor(spec, shared) {
    const toggle = make("button", { type: "button", class: "small", "aria-pressed": String(spec.log) }, "log");
    super(spec, shared, toggle);
    this.log = spec.log;
    this.at = null;
    toggle.hidden = !spec.lines.some((line) => line.value.some((value) => value > 0));
    toggle.addEventListener("click", () => {
      this.log = !this.log;
      toggle.setAttribute("aria-pressed", String(this.log));
      this.draw();
    });
  }

  get seconds() {
    return this.shared.axis === "time";
  }

  xs(line) {
    return this.seconds && line.time ? line.time : line.iteration;
  }

  // Whether a value can be drawn.
  good(value) {
    return value !== null && value !== undefined && (!this.log || value > 0);
  }

  draw() {
    const box = this.measure(10);
    const marks = (this.spec.marks || []).filter((mark) => this.good(mark.y));
    this.scale(marks);
    const parts = [];
    for (const tick of this.log ? logTicks(this.low, this.high) : niceTicks(this.low, this.high, 5))
      parts.push(...this.level(this.y(tick), formatNumber(Number(tick.toPrecision(6)))));
    const ticks = this.seconds ? timeTicks : niceTicks;
    for (const tick of ticks(this.first, this.last, clamp(this.width / 90, 2, 7))) {
      const words = this.seconds ? formatTime(tick, this.last, 6) : formatNumber(Number(tick.toPrecision(9)));
      parts.push(this.below(this.x(tick), words));
    }
    parts.push(...this.floor(this.seconds ? "time" : "iterations"));
    marks.forEach(({ y }) =>
      parts.push(draw("line", { class: "mark", x1: box.left, x2: box.right, y1: this.y(y), y2: this.y(y) })));
    this.lines.forEach((line) => parts.push(...this.line(line)));
    parts.push(...this.labels(marks)); // above the lines, so that they can be read
    this.show(parts, this.summary());
  }

  // The names of levels, each in the first of four columns in which none is so near that they would touch.
  labels(marks) {
    const { left, right } = this.box, tall = 15;
    const columns = [[right, "end"], [left + 4, "start"], [left + 0.64 * (right - left), "middle"],
      [left + 0.36 * (right - left), "middle"]].map(([x, anchor]) => ({ x, anchor, taken: [] }));
    return marks.map(({ y, label }) => {
      const at = Math.max(12, this.y(y) - 4);
      const free = columns.find(({ taken }) => taken.every((other) => Math.abs(other - at) >= tall));
      const { x, anchor, taken } = free || columns[0];
      taken.push(at);
      return draw("text", { class: "mark", x, y: at, "text-anchor": anchor }, label);
    });
  }

  scale(marks) {
    const { box } = this, good = (value) => this.good(value);
    const values = this.lines.flatMap((line) => [line.value, line.low || [], line.high || []].flat().filter(good));
    values.push(...marks.map((mark) => mark.y));
    const places = this.lines.flatMap((line) => this.xs(line).filter((x) => x !== null));
    let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    [this.first, this.last] = places.length ? [Math.min(...places), Math.max(...places)] : [0, 1];
    if (this.log) [low, high] = low < high ? [low, high] : [low / 2, high * 2];
    else {
      if (low > 0 && low < 0.5 * high) low = 0;
      const air = (high - low || Math.abs(high) || 1) * 0.05;
      [low, high] = [low === 0 ? 0 : low - air, high + air];
    }
    [this.low, this.high] = [low, high];
    const level = this.log ? Math.log10 : (value) => value;
    const bottom = level(low), tall = level(high) - bottom || 1, long = this.last - this.first || 1;
    this.y = (value) => box.bottom - ((level(value) - bottom) / tall) * (box.bottom - box.top);
    this.x = (value) => box.left + ((value - this.first) / long) * (box.right - box.left);
  }

  line(line) {
    const xs = this.xs(line), parts = [], css = style(line.run), size = line.value.length;
    const at = (k, value) => `${this.x(xs[k]).toFixed(1)},${this.y(value).toFixed(1)}`;
    const known = (k) => this.good(line.value[k]) && xs[k] !== null;
    if (line.low && size > 1) {
      const edge = (values) => values.map((value, k) => at(k, this.good(value) ? value : this.low));
      const band = [...edge(line.high), ...edge(line.low).reverse()];
      parts.push(draw("path", { class: `band ${css}`, d: `M${band.join("L")}Z` }));
    }
    let path = "";
    line.value.forEach((value, k) => {
      if (known(k)) path += `${k && known(k - 1) ? "L" : "M"}${at(k, value)}`;
    });
    parts.push(draw("path", { class: `line ${css}`, d: path, "stroke-dasharray": DASHES[line.run % DASHES.length] }));
    if (!this.several && size > 1) return parts;
    // Signs tell lines apart where colours do not; each line begins with its own at another place.
    const every = Math.max(1, Math.ceil(size / 6));
    for (let k = (line.run * every) >> 3; k < size; k += every) {
      const move = known(k) && `translate(${at(k, line.value[k])})`;
      if (move) parts.push(draw("path", { class: `sign ${css}`, d: MARKS[line.run % MARKS.length], transform: move }));
    }
    return parts;
  }

  summary() {
    const from = ({ value }) => `from ${formatNumber(value[0])} to ${formatNumber(value.at(-1))}`;
    const ends = this.lines.map((line) => `${line.name}: ${from(line)}`).join("; ");
    return `${this.spec.title} over ${this.seconds ? "seconds" : "iterations"}. ${ends}. Arrow keys read off values.`;
  }

  // Of each line the point nearest to a column of the picture.
  nearest(column) {
    const away = (x) => Math.abs(this.x(x) - column);
    return this.lines.map((line) => {
      const xs = this.xs(line);
      let best = -1;
      xs.forEach((x, k) => {
        if (x !== null && line.value[k] !== null && (best < 0 || away(x) < away(xs[best]))) best = k;
      });
      return { line, k: best, x: xs[best] };
    }).filter(({ k }) => k >= 0);
  }

  point(column, row = 30) {
    const found = this.nearest(column), { top, bottom } = this.box;
    if (!found.length) return;
    const best = (a, b) => (Math.abs(this.x(a.x) - column) <= Math.abs(this.x(b.x) - column) ? a : b);
    this.at = found.reduce(best).x;
    const x = this.x(this.at);
    const dots = found.filter(({ line, k }) => this.good(line.value[k])).map(({ line, k, x: own }) =>
      draw("circle", { class: `dot ${style(line.run)}`, cx: this.x(own), cy: this.y(line.value[k]), r: 4 }));
    this.cursor.replaceChildren(draw("line", { class: "cursor", x1: x, x2: x, y1: top, y2: bottom }), ...dots);
    this.tell(found.map((one) => this.row(one)), column, 14, row - 10);
  }

  row({ line, k, x }) {
    const spread = line.low && line.low[k] !== line.high[k];
    const range = spread ? ` (${formatNumber(line.low[k])} to ${formatNumber(line.high[k])})` : "";
    const where = this.seconds ? formatTime(x) : formatNumber(x);
    const name = this.several ? `${line.name}: ` : "";
    const words = `${name}${formatNumber(line.value[k])}${range}`;
    return make("div", {}, this.key(line), words, make("small", {}, ` at ${where}`));
  }

  step(by) {
    const all = this.lines.flatMap((line) => this.xs(line).filter((x) => x !== null));
    const xs = [...new Set(all)].sort((a, b) => a - b);
    const now = this.at === null ? -1 : firstAtLeast(xs, this.at);
    if (xs.length) this.point(this.x(xs[clamp(now + by, 0, xs.length - 1)]));
  }
}
