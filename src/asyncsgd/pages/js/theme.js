// Colours, light and dark. Later is always further from the paper, so that a late job stands out in both.

const RAMPS = {
  light: ["#c9e7d5", "#8fd0c8", "#4fb0c6", "#2b83ba", "#2c55a0", "#3b2a7d", "#2a0d4f"],
  dark: ["#1f4a63", "#22718a", "#2f9c9c", "#5cc492", "#a6dd7c", "#e6ec6f", "#fff7b8"],
};
const SHADES = 128;

function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

const theme = {
  read() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "line", "card", "accent", "bad"])
      this[name] = style.getPropertyValue(`--${name}`).trim();
    const stops = RAMPS[dark ? "dark" : "light"].map(rgb);
    this.shades = Array.from({ length: SHADES }, (_, k) => {
      const place = (k / (SHADES - 1)) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
      return stops[low].map((value, c) => Math.round(value + (place - low) * (stops[low + 1][c] - value)));
    });
    this.fills = this.shades.map(([r, g, b]) => `rgb(${r},${g},${b})`);
    this.packed = Uint32Array.from(this.shades, ([r, g, b]) => (b << 16) | (g << 8) | r);  // without opacity
    // Words on a bar: dark ones on light bars, light ones on dark bars.
    this.words = this.shades.map(([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10161c" : "#ffffff"));
    this.patterns = {};
  },
  // A small picture that repeats: how an outcome is told without colour.
  pattern(context, kind) {
    if (!this.patterns[kind]) {
      const tile = make("canvas", { width: 8, height: 8 });
      const pen = tile.getContext("2d");
      pen.strokeStyle = this.ink;
      pen.fillStyle = this.ink;
      pen.lineWidth = 1.1;
      const line = (...points) => {
        pen.beginPath();
        pen.moveTo(points[0], points[1]);
        pen.lineTo(points[2], points[3]);
        pen.stroke();
      };
      if (kind !== "cancelled") {
        line(-2, 10, 10, -2);
        line(-6, 6, 6, -6);
        line(2, 14, 14, 2);
      }
      if (kind === "rejected") {
        line(-2, -2, 10, 10);
        line(-6, 2, 6, 14);
        line(2, -6, 14, 6);
      }
      if (kind === "cancelled") [[1, 1], [5, 5]].forEach(([x, y]) => pen.fillRect(x, y, 2, 2));
      this.patterns[kind] = context.createPattern(tile, "repeat");
    }
    return this.patterns[kind];
  },
};

// Where a delay stands between two others: logarithmic, as one late job in a thousand would hide all differences.
function warmth(delay, [low, high]) {
  return clamp((Math.log1p(delay) - Math.log1p(low)) / (Math.log1p(high) - Math.log1p(low)), 0, 1);
}

// The delays between which colours change: all but the very smallest and the very largest.
function scaleOf(all) {
  const every = Math.ceil(all.reduce((sum, jobs) => sum + jobs.count, 0) / 50000);
  const some = all.flatMap(({ delay }) => Array.from(delay.filter((_, k) => k % every === 0)));
  const sorted = Float64Array.from(some).sort();
  const last = sorted.length - 1;
  const low = sorted[Math.floor(0.02 * last)] ?? 0, high = sorted[Math.ceil(0.998 * last)] ?? 1;
  return [low < 8 ? 0 : low, Math.max(high, low + 1)];
}
