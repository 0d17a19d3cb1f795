// The jobs of a run: columns out of base64, and the orders in which a timeline looks them up.

const OUTCOMES = ["in flight", "applied", "dropped", "rejected", "lost", "cancelled"];
const LETTERS = ["", "", "D", "R", "L", "C"];
const [FLYING, APPLIED, DROPPED] = [0, 1, 2];
const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

function unpack(column, count) {
  let values = null;
  if ("same" in column) {
    const value = column.same === null ? NaN : column.same;
    values = new Float64Array(count).fill(value);
    if ("rises" in column) values[0] = 0;
  } else {
    const text = atob(column.data), bytes = new Uint8Array(text.length);
    for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
    values = Float64Array.from(new ARRAYS[column.type](bytes.buffer));
  }
  if ("of" in column) values = values.map((place) => column.of[place] ?? NaN);
  if ("rises" in column) {
    let sum = column.rises;
    for (let k = 0; k < count; k++) values[k] = sum += values[k];
  }
  return values;
}

class Jobs {
  constructor(packed) {
    const { count, columns, tick, start } = packed;
    this.count = count;
    this.total = packed.total;
    this.workers = packed.workers;
    this.labels = packed.labels || packed.workers.map((worker) => `worker ${worker}`);  // for sentences
    this.kind = packed.labels ? "client" : "worker";
    this.clock = packed.clock;
    this.since = packed.since;
    this.horizon = packed.horizon;
    this.iterations = packed.iterations;
    for (const name of ["job", "worker", "outcome", "read", "version", "delay", "step"])
      this[name] = unpack(columns[name], count);
    this.staleness = columns.staleness === "delay" ? this.delay : unpack(columns.staleness, count);
    const assigned = unpack(columns.assigned, count), waited = unpack(columns.waited, count);
    const computed = unpack(columns.computed, count);
    this.assigned = assigned.map((ticks) => start + ticks * tick);
    this.begin = assigned.map((ticks, k) => start + (ticks + waited[k]) * tick);
    this.end = assigned.map((ticks, k) => start + (ticks + waited[k] + computed[k]) * tick);
    this.waited = waited.map((ticks) => ticks * tick);
    this.computed = computed.map((ticks) => ticks * tick);
    this.index();
  }

  colour(scale) {
    this.heat = Uint8Array.from(this.delay, (delay) => Math.round(warmth(delay, scale) * (SHADES - 1)));
  }

  // By worker, and of one worker in the order in which it was given them; and by the iteration at which they arrived.
  index() {
    const { count } = this;
    this.first = new Uint32Array(this.workers.length + 1);
    for (let k = 0; k < count; k++) this.first[this.worker[k] + 1]++;
    for (let w = 0; w < this.workers.length; w++) this.first[w + 1] += this.first[w];
    const next = this.first.slice();
    this.order = new Uint32Array(count);
    for (let k = 0; k < count; k++) this.order[next[this.worker[k]]++] = k;
    this.sortedAssigned = Float64Array.from(this.order, (k) => this.assigned[k]);
    // The latest end up to here: a job that was cancelled in its queue has ended before those in front of it.
    this.sortedEnd = Float64Array.from(this.order, (k) => this.end[k]);
    for (let w = 0; w < this.workers.length; w++)
      for (let place = this.first[w] + 1; place < this.first[w + 1]; place++)
        this.sortedEnd[place] = Math.max(this.sortedEnd[place], this.sortedEnd[place - 1]);
    this.arrival = new Map();
    for (let k = 0; k < count; k++) if (this.arrived(k)) this.arrival.set(this.iteration(k), k);
    this.place = new Uint32Array(count);
    this.order.forEach((k, place) => (this.place[k] = place));
  }

  arrived(k) {
    return this.outcome[k] === APPLIED || this.outcome[k] === DROPPED;
  }

  // The t at which it arrived (or was given up).
  iteration(k) {
    return this.read[k] + this.delay[k];
  }

  // Places in `order` of a worker's jobs that touch the time from t0 to t1.
  range(worker, t0, t1) {
    const low = this.first[worker], high = this.first[worker + 1];
    return [firstAtLeast(this.sortedEnd, t0, low, high), firstAtLeast(this.sortedAssigned, t1, low, high)];
  }

  // The job a worker computes at a time, or that waits there then; within `reach` of it if there is none; or -1.
  at(worker, time, reach) {
    const [low, high] = this.range(worker, time - reach, time + reach);
    let best = -1, distance = Infinity;
    for (let place = low; place < high; place++) {
      const k = this.order[place];
      const away = Math.max(this.begin[k] - time, time - this.end[k], 0);
      const waits = time >= this.assigned[k] && time < this.begin[k] ? reach / 2 : Infinity;
      if (Math.min(away, waits) < distance) [best, distance] = [k, Math.min(away, waits)];
      if (this.begin[k] > time + reach && distance < Infinity) break;
    }
    return distance <= reach ? best : -1;
  }

  // The mean of a column over each worker's jobs.
  means(column) {
    return this.workers.map((_, w) => {
      const mine = this.order.subarray(this.first[w], this.first[w + 1]);
      return mine.length ? mine.reduce((sum, k) => sum + column[k], 0) / mine.length : 0;
    });
  }

  // The worker's job that is closest to a time.
  nearest(worker, time) {
    const low = this.first[worker], high = this.first[worker + 1];
    if (low === high) return -1;
    const place = clamp(firstAtLeast(this.sortedEnd, time, low, high), low, high - 1);
    return this.order[place];
  }

  when(time) {
    return this.clock ? formatTime(time, Math.max(this.horizon, 1e-9), 6) : `iteration ${formatNumber(time)}`;
  }

  length(time) {
    return this.clock ? formatTime(time) : `${formatNumber(time)} iterations`;
  }
}
