// Which part of a run is looked at: a stretch of time and a range of rows. Several timelines share the time.

class Window {
  constructor(low, high) {
    [this.low, this.high] = [low, high > low ? high : low + 1];
    [this.t0, this.t1] = [this.low, this.high];
    this.listeners = [];
  }

  get span() {
    return this.t1 - this.t0;
  }

  get whole() {
    return this.t0 <= this.low && this.t1 >= this.high;
  }

  set(t0, t1) {
    const span = clamp(t1 - t0, (this.high - this.low) * 1e-7, this.high - this.low);
    this.t0 = clamp(t0, this.low, this.high - span);
    this.t1 = this.t0 + span;
    this.listeners.forEach((listener) => listener());
  }

  // A factor below 1 looks closer; `at` stays where it is on the screen.
  zoom(factor, at = (this.t0 + this.t1) / 2) {
    this.set(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }

  pan(seconds) {
    this.set(this.t0 + seconds, this.t1 + seconds);
  }

  fit() {
    this.set(this.low, this.high);
  }

  // Move as little as shows the stretch from a to b with some air around it.
  reveal(a, b) {
    const air = this.span * 0.06;
    if (b - a > this.span - 2 * air) this.set(a - (b - a) * 0.1, b + (b - a) * 0.1);
    else if (a < this.t0 + air) this.pan(a - air - this.t0);
    else if (b > this.t1 - air) this.pan(b + air - this.t1);
    else this.listeners.forEach((listener) => listener());
  }
}

// Rows r0..r1 of `count`, fractions allowed.
class Rows {
  constructor(count) {
    this.count = count;
    this.fit();
  }

  fit() {
    [this.r0, this.r1] = [0, this.count];
  }

  set(r0, r1) {
    const span = clamp(r1 - r0, Math.min(4, this.count), this.count);
    this.r0 = clamp(r0, 0, this.count - span);
    this.r1 = this.r0 + span;
  }

  zoom(factor, at = (this.r0 + this.r1) / 2) {
    this.set(at - (at - this.r0) * factor, at + (this.r1 - at) * factor);
  }

  reveal(row) {
    if (row < this.r0) this.set(row, row + this.r1 - this.r0);
    else if (row + 1 > this.r1) this.set(row + 1 - (this.r1 - this.r0), row + 1);
  }
}
