// What all charts share: a heading, an SVG that fits its column, a box for values beside the pointer, the arrow keys.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 4"];
const MARKS = [
  "M0,-4A4,4 0 1 1 0,4A4,4 0 1 1 0,-4Z",
  "M-3.5,-3.5H3.5V3.5H-3.5Z",
  "M0,-4.5L4.5,3.5H-4.5Z",
  "M0,-5L5,0L0,5L-5,0Z",
  "M0,4.5L4.5,-3.5H-4.5Z",
  "M-1.5,-4H1.5V-1.5H4V1.5H1.5V4H-1.5V1.5H-4V-1.5H-1.5Z",
  "M-4,-4L4,4M4,-4L-4,4",
];
const style = (run) => `c${run % DASHES.length}`;

class Plot {
  // spec: title, note, lines: [{run, name, ...}]; shared: what all charts of the page agree on
  constructor(spec, shared, ...tools) {
    Object.assign(this, { spec, shared });
    this.svg = draw("svg", { tabindex: 0, role: "img" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    this.element = make("div", { class: "chart" },
      make("div", { class: "bar" }, make("h3", {}, spec.title), ...tools),
      ...(spec.note ? [make("p", { class: "note" }, spec.note)] : []),
      make("div", { class: "stage" }, this.svg, this.tip),
      this.spoken);
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.point(event.clientX - box.left, event.clientY - box.top);
    });
    this.svg.addEventListener("pointerleave", () => this.clear());
    this.svg.addEventListener("blur", () => this.clear());
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.step(step);
      this.spoken.textContent = [...this.tip.children].map((row) => row.textContent).join("; ");
    });
    shared.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  get lines() {
    return this.spec.lines.filter((line) => !this.shared.hidden.has(line.run));
  }

  get several() {
    return this.spec.lines.length > 1;
  }

  // The picture's edges, as wide as there is room.
  measure(top) {
    this.width = Math.max(220, this.element.clientWidth);
    this.height = Math.round(clamp(this.width * 0.52, 190, 270));
    this.box = { left: 50, right: this.width - 12, top, bottom: this.height - 34 };
    return this.box;
  }

  level(y, words) {
    const { left, right } = this.box;
    return [
      draw("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
      draw("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, words),
    ];
  }

  below(x, words) {
    return draw("text", { x, y: this.box.bottom + 16, "text-anchor": "middle" }, words);
  }

  floor(name) {
    const { left, right, bottom } = this.box;
    return [
      draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      draw("text", { class: "name", x: right, y: this.height - 3, "text-anchor": "end" }, name),
    ];
  }

  show(parts, label) {
    const { width, height } = this;
    this.cursor = draw("g");
    fill(this.svg, { viewBox: `0 0 ${width} ${height}`, width, height, "aria-label": label }, []);
    this.svg.replaceChildren(...parts, this.cursor);
  }

  key(line) {
    return make("i", { class: `key ${style(line.run)}` });
  }

  // Values beside a column of the picture, on the side where there is room.
  tell(rows, x, gap, y) {
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth, left = x > this.width / 2 ? x - gap - wide : x + gap;
    this.tip.style.left = `${clamp(left, 0, Math.max(0, this.width - wide))}px`;
    this.tip.style.top = `${clamp(y, 0, Math.max(0, this.height - this.tip.offsetHeight))}px`;
  }

  clear() {
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }
}
