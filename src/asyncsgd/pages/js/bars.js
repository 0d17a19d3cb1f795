// How delays are spread: bars for one run, steps for several.

function columnsOf(css, shares, x, y) {
  const wide = 0.84 * (x(1) - x(0)), floor = y(0), parts = [];
  shares.forEach((share, k) => {
    const size = { x: x(k + 0.5) - wide / 2, width: wide, y: y(share), height: Math.max(1, floor - y(share)) };
    if (share) parts.push(draw("rect", { class: `column ${css}`, ...size }));
  });
  return parts;
}

function stepsOf(css, shares, x, y, run) {
  const at = (share, k) => `${x(k).toFixed(1)},${y(share).toFixed(1)}H${x(k + 1).toFixed(1)}`;
  const path = `M${shares.map(at).join("L")}`;
  return [draw("path", { class: `line ${css}`, d: path, "stroke-dasharray": DASHES[run % DASHES.length] })];
}

class Bars extends Plot {
  // spec: ranges: [[first, last]], lines: [{run, name, counts}], marks: [{x, label}]
  constructor(spec, shared) {
    super(spec, shared);
    this.chosen = -1;
  }

  draw() {
    const { ranges } = this.spec, box = this.measure(22), parts = [];
    const shares = this.lines.map(({ counts }) => {
      const total = counts.reduce((sum, count) => sum + count, 0) || 1;
      return counts.map((count) => count / total);
    });
    const high = Math.max(0.01, ...shares.flat()) * 1.06;
    this.wide = (box.right - box.left) / ranges.length;
    const y = (share) => box.bottom - (share / high) * (box.bottom - box.top);
    const x = (place) => box.left + place * this.wide;
    for (const tick of niceTicks(0, high, 4))
      parts.push(...this.level(y(tick), `${Number((100 * tick).toPrecision(3))} %`));
    let free = -Infinity;
    ranges.forEach(([first], place) => {
      const words = formatNumber(first), half = Math.max(17, 4 * words.length + 4), at = x(place + 0.5);
      if (at - half < free || at + half > this.width) return;
      parts.push(this.below(at, words));
      free = at + half;
    });
    const shape = this.several ? stepsOf : columnsOf;
    this.lines.forEach(({ run }, which) => parts.push(...shape(style(run), shares[which], x, y, run)));
    parts.push(...this.floor("delay, in updates"), ...this.marks(x));
    const total = (counts) => formatNumber(counts.reduce((sum, count) => sum + count, 0));
    const totals = this.lines.map(({ name, counts }) => `${name}: ${total(counts)} jobs`);
    this.show(parts, `${this.spec.title}. ${totals.join("; ")}. Arrow keys read off counts.`);
  }

  marks(x) {
    const { right, top, bottom } = this.box, parts = [];
    let free = -Infinity;
    for (const mark of this.spec.marks || []) {
      const place = this.spec.ranges.findIndex(([, last]) => mark.x <= last + 0.5);
      if (place < 0) continue;
      const [first, last] = this.spec.ranges[place];
      const at = x(place + clamp((mark.x - first + 0.5) / (last - first + 1), 0, 1));
      const room = 7 * mark.label.length, left = at + room > right, low = (left ? at - room : at) < free;
      const words = { x: at + (left ? -4 : 4), y: low ? top + 10 : top - 6, "text-anchor": left ? "end" : "start" };
      parts.push(
        draw("line", { class: "mark", x1: at, x2: at, y1: top - 4, y2: bottom }),
        draw("text", { class: "mark", ...words }, mark.label));
      free = at + room;
    }
    return parts;
  }

  point(column) {
    const place = Math.floor((column - this.box.left) / this.wide);
    if (place < 0 || place >= this.spec.ranges.length) return this.clear();
    this.chosen = place;
    const [first, last] = this.spec.ranges[place], { left, top, bottom } = this.box;
    const title = make("b", {}, `delay ${formatNumber(first)}${first === last ? "" : `–${formatNumber(last)}`}`);
    const rows = this.lines.map((line) => {
      const name = this.several ? `${line.name}: ` : "";
      return make("div", {}, this.key(line), `${name}${formatNumber(line.counts[place])} jobs`);
    });
    const middle = left + (place + 0.5) * this.wide;
    const shade = { class: "cursor", x: middle - this.wide / 2, width: this.wide, y: top, height: bottom - top };
    this.cursor.replaceChildren(draw("rect", shade));
    this.tell([title, ...rows], middle, this.wide / 2 + 8, top);
  }

  step(by) {
    const next = clamp(this.chosen + by, 0, this.spec.ranges.length - 1);
    this.point(this.box.left + (next + 0.5) * this.wide);
  }
}
