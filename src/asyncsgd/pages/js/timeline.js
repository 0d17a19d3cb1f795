// One run's workers over time: a canvas to look at and to walk through, a strip of the whole, the numbers of one job.

const HEAD = 22, FOOT = 24, STRIP = 30;
const CROWDED = 5000;  // bars that are still drawn one by one
const MANY = 64;  // workers that are put in order of speed

class Timeline {
  constructor(host, name, jobs, window_) {
    Object.assign(this, { host, name, jobs, window: window_, selected: -1, hovered: -1, last: {} });
    this.rows = new Rows(jobs.workers.length);
    this.sort(this.rows.count > MANY ? "slow" : "number");
    const keys = "Arrow keys go from job to job, plus and minus zoom, 0 shows the whole run.";
    const label = `Workers of ${name} over time. ${keys}`;
    const role = { role: "application", "aria-roledescription": "timeline", "aria-label": label };
    this.canvas = make("canvas", { tabindex: 0, ...role });
    this.tip = make("div", { class: "tip", hidden: true });
    const hint = "Click the timeline first, or hold Ctrl, to zoom with the wheel";
    this.hint = make("div", { class: "hint", hidden: true }, hint);
    this.strip = make("canvas", { class: "strip", "aria-hidden": "true" });
    this.panel = new Panel();
    const stage = make("div", { class: "stage" }, this.canvas, this.tip, this.hint);
    host.append(stage, this.strip, this.panel.element);
    this.pen = this.canvas.getContext("2d");
    this.window.listeners.push(() => this.request(true));
    new Pointer(this);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => (this.hint.hidden = true));
    new ResizeObserver(() => this.resize()).observe(stage);
    this.resize();
  }

  sort(by) {
    const { jobs } = this;
    this.workerAt = jobs.workers.map((_, w) => w);
    if (by !== "number") {
      const value = jobs.means(by === "slow" ? jobs.computed : jobs.delay);
      this.workerAt.sort((a, b) => value[b] - value[a] || a - b);
    }
    this.rowOf = [];
    this.workerAt.forEach((worker, row) => (this.rowOf[worker] = row));
  }

  resize() {
    const width = Math.max(240, this.canvas.parentElement.clientWidth);
    const { count } = this.rows;
    const each = clamp(220 / count, 17, 26);
    const room = count <= 26 ? Math.max(3, count) * each : clamp(count * 2, 442, 560);
    this.width = width;
    this.gutter = width < 560 ? 30 : 66;
    this.height = Math.round(HEAD + room + FOOT);
    this.ratio = window.devicePixelRatio || 1;
    for (const [canvas, height] of [[this.canvas, this.height], [this.strip, STRIP]]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.whole = null;
    this.draw();
  }

  // The picture's geometry for the present view.
  frame() {
    const { t0, t1 } = this.window, { r0, r1 } = this.rows;
    const left = this.gutter, width = this.width - this.gutter - 1, top = HEAD, tall = this.height - HEAD - FOOT;
    const height = tall / (r1 - r0), scale = width / (t1 - t0);
    const rows = [];
    for (let row = Math.floor(r0); row < Math.min(this.rows.count, Math.ceil(r1)); row++)
      rows.push({ row, worker: this.workerAt[row], y: top + (row - r0) * height });
    return {
      t0, t1, left, width, top, tall, height, rows,
      x: (time) => left + (time - t0) * scale,
      time: (x) => t0 + (x - left) / scale,
      rowOf: (worker) => top + (this.rowOf[worker] - r0) * height,
    };
  }

  // Drawn with the screen's next picture; of a crowd in motion half as fine, and fine again when it stands.
  request(moving = false) {
    if (moving) {
      clearTimeout(this.settling);
      this.settling = setTimeout(() => this.draw(), 160);
    }
    this.moving = moving || (this.moving && this.pending);
    if (!this.pending) this.pending = requestAnimationFrame(() => this.draw(this.moving));
  }

  draw(moving = false) {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    const began = performance.now();
    const { pen, jobs } = this, frame = this.frame();
    frame.coarse = moving && jobs.count > 4 * CROWDED ? 2 : 1;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = theme.card;
    pen.fillRect(0, 0, this.width, this.height);
    this.axes(frame);
    let visible = 0;
    for (const { worker } of frame.rows) {
      const [low, high] = jobs.range(worker, frame.t0, frame.t1);
      visible += Math.max(0, high - low);
    }
    const usual = (frame.width * frame.rows.length) / Math.max(1, visible);
    const averaged = visible > CROWDED || frame.height < 3 || usual < 3;
    pen.save();
    pen.beginPath();
    pen.rect(frame.left, frame.top, frame.width, frame.tall);
    pen.clip();
    (averaged ? paintAverages : paintBars)(pen, jobs, frame);
    pen.restore();
    const job = this.hovered >= 0 ? this.hovered : this.selected;
    if (job >= 0) {
      paintStory(pen, jobs, job, frame);
      this.captions(job, frame);
    }
    this.drawStrip();
    this.last = { averaged, visible, milliseconds: performance.now() - began };
  }

  axes(frame) {
    const { pen, jobs } = this, { x, left, width, top, tall, height } = frame;
    pen.font = `12px ${GLYPH}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillStyle = theme.soft;
    const every = [1, 2, 5, 10, 20, 25, 50, 100].find((step) => step * height >= 15) || Math.ceil(15 / height);
    const brief = this.gutter < 40 || jobs.workers.some((worker) => worker.length > 2);
    if (brief && this.gutter > 40) pen.fillText(jobs.kind, left - 8, 7);
    for (const { row, worker, y } of frame.rows) {
      if (row % every || y + height / 2 < top || y + height / 2 > top + tall) continue;
      const name = jobs.workers[worker];
      pen.fillText(brief ? name.slice(this.gutter < 40 ? -4 : -9) : `${jobs.kind} ${name}`, left - 8, y + height / 2);
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    const ticks = (jobs.clock ? timeTicks : niceTicks)(frame.t0, frame.t1, clamp(width / 110, 2, 9));
    const scale = Math.max(Math.abs(frame.t0), Math.abs(frame.t1));
    const digits = 1 + Math.max(2, Math.ceil(Math.log10(Math.max(10, scale / this.window.span))) + 2);
    for (const tick of ticks) {
      const at = Math.round(x(tick)) + 0.5;
      pen.fillStyle = theme.line;
      pen.fillRect(at - 0.5, top, 1, tall);
      pen.fillStyle = theme.soft;
      const words = jobs.clock ? formatTime(tick, scale, digits) : formatNumber(Number(tick.toPrecision(digits)));
      const half = pen.measureText(words).width / 2;
      pen.fillText(words, clamp(at, left + half, left + width - half), this.height - 8);
    }
  }

  // What stands over the two dashed lines of the chosen job.
  captions(job, frame) {
    const { pen, jobs } = this;
    pen.font = `12px ${GLYPH}`;
    pen.textBaseline = "middle";
    const read = `reads version ${formatNumber(jobs.version[job])}`;
    const when = jobs.arrived(job) ? ` as update ${formatNumber(jobs.iteration(job))}` : "";
    const fate = OUTCOMES[jobs.outcome[job]] + when;
    const [first, second] = [read, fate].map((words) => pen.measureText(words).width + 8);
    // Each over its line, side by side where the lines are too close, and inside the picture.
    const left = frame.left, right = left + frame.width;
    const start = clamp(frame.x(jobs.assigned[job]) - first / 2, left, Math.max(left, right - first - second - 6));
    const next = start + first + 6;
    const end = clamp(frame.x(jobs.end[job]) - second / 2, next, Math.max(next, right - second));
    [[read, start, first], [fate, end, second]].forEach(([words, at, wide]) => {
      pen.fillStyle = theme.card;
      pen.fillRect(at, 0, wide, HEAD - 1);
      pen.fillStyle = theme.accent;
      pen.textAlign = "left";
      pen.fillText(words, at + 4, HEAD / 2);
    });
  }

  drawStrip() {
    const pen = this.strip.getContext("2d");
    const left = this.gutter, width = this.width - left - 1, { low, high, t0, t1 } = this.window;
    if (!this.whole) {
      this.whole = make("canvas", { width: Math.max(1, Math.floor(width)), height: STRIP });
      paintOverview(this.whole.getContext("2d"), this.jobs, { t0: low, t1: high, width, height: STRIP });
    }
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, STRIP);
    pen.drawImage(this.whole, left, 0, width, STRIP);
    const from = left + ((t0 - low) / (high - low)) * width, to = left + ((t1 - low) / (high - low)) * width;
    pen.fillStyle = theme.card;
    pen.globalAlpha = 0.72;
    pen.fillRect(left, 0, from - left, STRIP);
    pen.fillRect(to, 0, left + width - to, STRIP);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    pen.strokeStyle = theme.accent;
    pen.strokeRect(from + 0.75, 0.75, Math.max(2, to - from - 1.5), STRIP - 1.5);
  }

  // The job under a point of the canvas, or -1.
  hit(x, y) {
    const frame = this.frame();
    if (x < frame.left || y < frame.top || y > frame.top + frame.tall) return -1;
    const row = Math.floor(this.rows.r0 + (y - frame.top) / frame.height);
    if (row < 0 || row >= this.rows.count) return -1;
    return this.jobs.at(this.workerAt[row], frame.time(x), (4 * (frame.t1 - frame.t0)) / frame.width);
  }

  hover(job) {
    if (job === this.hovered) return;
    this.hovered = job;
    this.request();
  }

  select(job, follow = true) {
    this.selected = job;
    this.hovered = -1;
    this.panel.show(this.jobs, job);
    if (job >= 0 && follow) {
      this.rows.reveal(this.rowOf[this.jobs.worker[job]]);
      this.window.reveal(this.jobs.assigned[job], this.jobs.end[job]);
    }
    this.request();
  }

  // From the chosen job to one of the same worker (along) or of a worker some rows away.
  walk(along, down) {
    const { jobs, window: w } = this;
    if (this.selected < 0) {
      const row = clamp(Math.floor((this.rows.r0 + this.rows.r1) / 2), 0, this.rows.count - 1);
      this.select(jobs.nearest(this.workerAt[row], (w.t0 + w.t1) / 2));
    } else if (along) {
      const worker = jobs.worker[this.selected];
      const place = clamp(jobs.place[this.selected] + along, jobs.first[worker], jobs.first[worker + 1] - 1);
      this.select(jobs.order[place]);
    } else {
      const row = clamp(this.rowOf[jobs.worker[this.selected]] + down, 0, this.rows.count - 1);
      const middle = (jobs.begin[this.selected] + jobs.end[this.selected]) / 2;
      this.select(jobs.nearest(this.workerAt[row], clamp(middle, w.t0, w.t1)));
    }
  }

  key(event) {
    const w = this.window, far = event.shiftKey;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => (far ? w.pan(-w.span / 4) : this.walk(-1, 0)),
      ArrowRight: () => (far ? w.pan(w.span / 4) : this.walk(1, 0)),
      ArrowUp: () => this.walk(0, far ? -10 : -1),
      ArrowDown: () => this.walk(0, far ? 10 : 1),
      "+": () => w.zoom(0.5, this.anchor()),
      "=": () => w.zoom(0.5, this.anchor()),
      "-": () => w.zoom(2, this.anchor()),
      _: () => w.zoom(2, this.anchor()),
      0: () => { w.fit(); this.rows.fit(); },
      Home: () => w.pan(w.low - w.t0),
      End: () => w.pan(w.high - w.t1),
      "]": () => this.rows.zoom(0.5),
      "[": () => this.rows.zoom(2),
      Escape: () => this.select(-1, false),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
    this.request();
  }

  // Zoom by keys around the chosen job, if it can be seen.
  anchor() {
    const { jobs, selected: k, window: w } = this;
    const middle = k < 0 ? NaN : (jobs.begin[k] + jobs.end[k]) / 2;
    return middle >= w.t0 && middle <= w.t1 ? middle : (w.t0 + w.t1) / 2;
  }
}
