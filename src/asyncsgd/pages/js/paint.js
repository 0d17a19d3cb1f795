// Drawing the jobs of a stretch of time: bars while there is room for them, else what each worker did on average.

const GLYPH = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const BAR = 0.7;

// Bars of single jobs. Waiting is a thin line below, so that it can lie beside the computing of the job before.
function paintBars(pen, jobs, frame) {
  const { t0, t1, x, rows, height } = frame;
  const tall = Math.max(1, height * (height >= 6 ? BAR : 1));
  const small = Math.min(11, tall - 3);
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  pen.font = `${small}px ${GLYPH}`;
  for (const { worker, y } of rows) {
    const [low, high] = jobs.range(worker, t0, t1);
    const top = y + (height - tall) / (height >= 6 ? 2.6 : 2);
    for (let place = low; place < high; place++) {
      const k = jobs.order[place];
      const left = x(jobs.begin[k]), right = x(jobs.end[k]);
      if (jobs.begin[k] > jobs.assigned[k]) {
        const from = Math.max(x(jobs.assigned[k]), frame.left - 2);
        pen.fillStyle = theme.soft;
        pen.globalAlpha = 0.55;
        pen.fillRect(from, top + tall + 1, Math.max(left - from, 0.5), Math.max(1, height * 0.09));
        pen.globalAlpha = 1;
      }
      if (jobs.begin[k] >= t1 || right <= frame.left) continue;
      const edge = frame.left + frame.width;  // words go to the middle of what is seen
      paintBar(pen, jobs, k, Math.max(left, frame.left - 1), Math.min(right, edge + 1), top, tall, small);
    }
  }
}

function paintBar(pen, jobs, k, left, right, top, tall, small) {
  const wide = Math.max(right - left - (right - left > 4 ? 1 : 0), 0.6);
  const shade = jobs.heat[k], outcome = jobs.outcome[k];
  if (outcome === APPLIED) {
    pen.fillStyle = theme.fills[shade];
    pen.fillRect(left, top, wide, tall);
  } else {
    pen.fillStyle = outcome === FLYING || outcome === DROPPED ? theme.card : theme.pattern(pen, OUTCOMES[outcome]);
    pen.fillRect(left, top, wide, tall);
    pen.lineWidth = outcome === DROPPED ? 2 : 1;
    pen.strokeStyle = outcome === DROPPED ? theme.fills[shade] : theme.soft;
    if (outcome === FLYING) pen.setLineDash([3, 2]);
    if (wide > 3) pen.strokeRect(left + 0.5, top + 0.5, wide - 1, tall - 1);
    pen.setLineDash([]);
  }
  if (small < 7) return;
  const words = outcome === APPLIED ? String(jobs.delay[k]) : outcome === FLYING ? "…" : LETTERS[outcome];
  if (wide < 7 + 6.4 * words.length) return;
  if (outcome > DROPPED) {
    pen.fillStyle = theme.card;
    pen.fillRect(left + wide / 2 - 6, top + 1, 12, tall - 2);
  }
  pen.fillStyle = outcome === APPLIED ? theme.words[shade] : theme.ink;
  pen.fillText(words, left + wide / 2, top + tall / 2 + 0.5);
}

// One pixel per column and worker (or several workers): how much they computed, and how late on average.
// A chequered pixel says that half of the work there came to nothing.
function paintAverages(pen, jobs, frame) {
  const { t0, t1, rows, height, left, width, top, tall, coarse } = frame;
  const columns = Math.max(1, Math.round(width / coarse)), scale = columns / (t1 - t0);
  const merged = height < coarse;
  const lines = merged ? Math.max(1, Math.round(tall / coarse)) : rows.length;
  const busy = new Float32Array(columns * lines), heat = new Float32Array(columns * lines);
  const wasted = new Float32Array(columns * lines), members = new Float32Array(lines);
  rows.forEach(({ worker, y }, place) => {
    const line = merged ? clamp(Math.floor((y - top) / coarse), 0, lines - 1) : place;
    members[line]++;
    const base = line * columns;
    const [low, high] = jobs.range(worker, t0, t1);
    for (let at = low; at < high; at++) {
      const k = jobs.order[at];
      const from = (Math.max(jobs.begin[k], t0) - t0) * scale, to = (Math.min(jobs.end[k], t1) - t0) * scale;
      if (!(to > from)) continue;
      const shade = jobs.heat[k], waste = jobs.outcome[k] > APPLIED ? 1 : 0;
      const first = Math.floor(from), last = Math.min(Math.floor(to), columns - 1);
      for (let column = first; column <= last; column++) {
        const part = column > first && column < last ? 1 : Math.min(to, column + 1) - Math.max(from, column);
        busy[base + column] += part;
        heat[base + column] += part * shade;
        if (waste) wasted[base + column] += part;
      }
    }
  });
  const image = new ImageData(columns, lines), pixels = new Uint32Array(image.data.buffer);
  const [r, g, b] = rgb(toHex(theme.ink)), ink = (b << 16) | (g << 8) | r;
  for (let line = 0, p = 0; line < lines; line++)
    for (let column = 0; column < columns; column++, p++) {
      if (!busy[p]) continue;
      const bad = wasted[p] > busy[p] / 2 && (line + column) % 2;
      const colour = bad ? ink : theme.packed[(heat[p] / busy[p] + 0.5) | 0];
      pixels[p] = colour | (Math.min(255, 255.5 * (busy[p] / members[line])) << 24);
    }
  const sheet = make("canvas", { width: columns, height: lines });
  sheet.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  const first = merged ? top : rows[0].y, whole = merged ? tall : height * rows.length;
  pen.drawImage(sheet, left, first, width, whole);
  if (height >= 6) {
    pen.fillStyle = theme.card;
    for (const { y } of rows) pen.fillRect(left, y + height * (1 - (1 - BAR) / 2), width, height * (1 - BAR));
  }
}

const toHex = (colour) => (colour.length === 4 ? "#" + [...colour.slice(1)].map((c) => c + c).join("") : colour);

// All of a run in a strip: how many workers computed, coloured by how late what they did came.
function paintOverview(pen, jobs, frame) {
  const { t0, t1, width, height } = frame;
  const columns = Math.max(1, Math.floor(width)), scale = columns / (t1 - t0);
  const busy = new Float64Array(columns + 1), heat = new Float64Array(columns + 1);
  for (let k = 0; k < jobs.count; k++) {
    const from = clamp((jobs.begin[k] - t0) * scale, 0, columns), to = clamp((jobs.end[k] - t0) * scale, 0, columns);
    const first = Math.floor(from), last = Math.min(Math.floor(to), columns - 1);
    for (let column = first; column <= last; column++) {
      const part = Math.min(to, column + 1) - Math.max(from, column);
      busy[column] += part;
      heat[column] += part * jobs.heat[k];
    }
  }
  for (let column = 0; column < columns; column++) {
    if (!busy[column]) continue;
    const tall = Math.min(1, busy[column] / jobs.workers.length) * (height - 2);
    pen.fillStyle = theme.fills[Math.min(SHADES - 1, Math.round(heat[column] / busy[column]))];
    pen.fillRect(column, height - 1 - tall, 1, tall);
  }
}

// What a job has to do with others: who made the version it read, who came in between, when it was applied.
function paintStory(pen, jobs, k, frame) {
  const { x, rowOf, height, left, width, top, tall } = frame;
  const middle = (job) => rowOf(jobs.worker[job]) + height / 2;
  const start = x(jobs.assigned[k]), begin = x(jobs.begin[k]), end = x(jobs.end[k]), y = middle(k);
  const bar = Math.max(3, height * BAR);
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, tall);
  pen.clip();
  pen.strokeStyle = pen.fillStyle = theme.accent;
  if (jobs.arrived(k)) {
    pen.setLineDash([4, 3]);
    pen.lineWidth = 1;
    for (const at of [start, end]) {
      pen.beginPath();
      pen.moveTo(at, top);
      pen.lineTo(at, top + tall);
      pen.stroke();
    }
    pen.setLineDash([]);
    for (let t = jobs.read[k], last = jobs.iteration(k), drawn = 0; t < last && drawn < 3000; t++) {
      const other = jobs.arrival.get(t);
      if (other === undefined) continue;
      drawn++;
      dot(pen, x(jobs.end[other]), middle(other), clamp(height / 6, 1.5, 3.5), theme.accent);
    }
  }
  const maker = jobs.arrival.get(jobs.read[k] - 1);
  if (maker !== undefined && jobs.worker[maker] !== jobs.worker[k])
    arrow(pen, x(jobs.end[maker]), middle(maker), start, y);
  if (begin > start) {
    const thick = clamp(height * 0.12, 1.5, 4);
    pen.fillStyle = theme.ink;
    pen.fillRect(start, y + height / 2 - thick - 1, begin - start, thick);
  }
  pen.lineWidth = 2.5;
  pen.strokeStyle = theme.ink;
  pen.strokeRect(begin, y - bar / 2 - 1, Math.max(end - begin, 2), bar + 2);
  pen.restore();
}

function dot(pen, x, y, radius, colour) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fillStyle = colour;
  pen.fill();
  pen.lineWidth = 1;
  pen.strokeStyle = theme.card;
  pen.stroke();
}

function arrow(pen, x0, y0, x1, y1) {
  const bend = clamp(Math.abs(y1 - y0) / 3, 8, 40);
  pen.lineWidth = 1.6;
  pen.strokeStyle = pen.fillStyle = theme.accent;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 4, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1 + 2, y1);
  pen.lineTo(x1 - 7, y1 - 4.5);
  pen.lineTo(x1 - 7, y1 + 4.5);
  pen.fill();
}
