// Mouse, pen and fingers on a timeline: drag to pan, wheel or two fingers to zoom, a click keeps a job.

class Pointer {
  constructor(timeline) {
    Object.assign(this, { timeline, down: new Map(), moved: 0 });
    const { canvas, strip } = timeline;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", (event) => this.down.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      this.jump(event);
    });
    strip.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
  }

  point(event, canvas = this.timeline.canvas) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  press(event) {
    this.timeline.canvas.focus({ preventScroll: true });
    this.timeline.hint.hidden = true;
    if (!this.down.size) this.moved = 0;
    this.down.set(event.pointerId, this.point(event));
    if (event.pointerType === "mouse") this.timeline.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { timeline } = this, now = this.point(event), before = this.down.get(event.pointerId);
    if (!before) return this.look(event, now);
    if (this.down.size === 2) this.pinch(event.pointerId, now);
    else if (this.down.size === 1) {
      this.moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      const frame = timeline.frame();
      const { rows } = timeline, up = (before.y - now.y) / frame.height;
      if (this.moved > 4) {
        if (event.pointerType === "mouse") rows.set(rows.r0 + up, rows.r1 + up);
        timeline.window.pan(((before.x - now.x) / frame.width) * timeline.window.span);
      }
    }
    this.down.set(event.pointerId, now);
  }

  // Two fingers: what is under them stays under them.
  pinch(id, now) {
    const { timeline } = this, [other] = [...this.down].filter(([key]) => key !== id).map(([, point]) => point);
    const before = this.down.get(id), frame = timeline.frame(), w = timeline.window;
    const gap = Math.max(10, Math.abs(before.x - other.x)), wider = Math.max(10, Math.abs(now.x - other.x));
    this.moved += 10;
    w.zoom(gap / wider, frame.time((before.x + other.x) / 2));
    w.pan((((before.x - now.x) / 2) / frame.width) * w.span);
  }

  release(event) {
    const known = this.down.delete(event.pointerId);
    if (!known || this.moved > 4) return;
    const { x, y } = this.point(event), job = this.timeline.hit(x, y);
    this.timeline.select(job, false);
  }

  look(event, { x, y }) {
    if (event.pointerType === "touch") return;
    const { timeline } = this, job = timeline.hit(x, y);
    timeline.hover(job);
    timeline.tip.hidden = job < 0;
    if (job < 0) return;
    const { tip } = timeline;
    tip.replaceChildren(shortly(timeline.jobs, job));
    const left = clamp(x + 14, 0, timeline.width - tip.offsetWidth - 2);
    tip.style.left = `${left}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > timeline.height ? y - tip.offsetHeight - 10 : y + 18}px`;
  }

  leave() {
    this.timeline.tip.hidden = true;
    this.timeline.hover(-1);
  }

  wheel(event) {
    const { timeline } = this;
    const wanted = event.ctrlKey || event.metaKey || document.activeElement === timeline.canvas;
    if (!wanted && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) {
      timeline.hint.hidden = false;
      clearTimeout(this.fading);
      this.fading = setTimeout(() => (timeline.hint.hidden = true), 1600);
      return;
    }
    event.preventDefault();
    const { x, y } = this.point(event), frame = timeline.frame(), unit = event.deltaMode ? 30 : 1;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.window.pan(((event.deltaX * unit) / frame.width) * timeline.window.span);
    } else if (event.shiftKey) {
      timeline.rows.zoom(1.0018 ** (event.deltaY * unit), timeline.rows.r0 + (y - frame.top) / frame.height);
      timeline.request();
    } else {
      timeline.window.zoom(1.0018 ** clamp(event.deltaY * unit, -400, 400), frame.time(Math.max(x, frame.left)));
    }
  }

  // The strip below: the window's middle goes where the pointer is.
  jump(event) {
    const { timeline } = this, w = timeline.window, { x } = this.point(event, timeline.strip);
    const middle = w.low + ((x - timeline.gutter) / (timeline.width - timeline.gutter)) * (w.high - w.low);
    w.pan(middle - (w.t0 + w.t1) / 2);
  }
}
