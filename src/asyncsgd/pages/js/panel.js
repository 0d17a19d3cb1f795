// The numbers of one job: a few beside the pointer, all of them below the timeline, for eyes and to be read out.

const FIELDS = {
  job: (jobs, k) => formatNumber(jobs.job[k]),
  worker: (jobs, k) => jobs.workers[jobs.worker[k]],
  outcome: (jobs, k) => OUTCOMES[jobs.outcome[k]],
  delay: (jobs, k) => `${formatNumber(jobs.delay[k])} updates${jobs.outcome[k] === FLYING ? " so far" : ""}`,
  staleness: (jobs, k) => `${formatNumber(jobs.staleness[k])} versions`,
  read: (jobs, k) => `version ${formatNumber(jobs.version[k])}, iteration ${formatNumber(jobs.read[k])}`,
  "made by": (jobs, k) => maker(jobs, k),
  assigned: (jobs, k) => jobs.when(jobs.assigned[k]),
  waited: (jobs, k) => jobs.length(jobs.waited[k]),
  computed: (jobs, k) => jobs.length(jobs.computed[k]) + (jobs.outcome[k] === FLYING ? " so far" : ""),
  ended: (jobs, k) => (jobs.outcome[k] === FLYING ? "not yet" : jobs.when(jobs.end[k])),
  "came as": (jobs, k) => (jobs.arrived(k) ? `update ${formatNumber(jobs.iteration(k))}` : "nothing"),
  step: (jobs, k) => (jobs.arrived(k) ? formatNumber(jobs.step[k]) : "–"),
};
const BRIEF = ["outcome", "delay", "read", "waited", "computed", "step"];

// Whose update made the version that a job read.
function maker(jobs, k) {
  if (!jobs.read[k]) return "nobody, it is the start";
  const other = jobs.arrival.get(jobs.read[k] - 1);
  if (other === undefined) return `update ${formatNumber(jobs.read[k] - 1)}`;
  return `job ${formatNumber(jobs.job[other])} of ${jobs.labels[jobs.worker[other]]}`;
}

// What stands beside the pointer.
function shortly(jobs, k) {
  const rows = BRIEF.filter((name) => name !== "waited" || jobs.waited[k] > 0);
  return make("div", {}, make("b", {}, `job ${FIELDS.job(jobs, k)} of ${jobs.labels[jobs.worker[k]]}`),
    make("dl", {}, ...rows.flatMap((name) => [make("dt", {}, name), make("dd", {}, FIELDS[name](jobs, k))])));
}

class Panel {
  constructor() {
    this.values = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, make("dd")]));
    const rows = Object.entries(this.values).map(([name, value]) => make("div", {}, make("dt", {}, name), value));
    this.list = make("dl", { hidden: true }, ...rows);
    this.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    this.element = make("div", { class: "panel" }, this.list, this.spoken);
  }

  show(jobs, k) {
    this.list.hidden = k < 0;
    if (k < 0) return;
    for (const [name, words] of Object.entries(FIELDS)) this.values[name].textContent = words(jobs, k);
    const names = ["outcome", "delay", "read", "ended", "came as"];
    const said = names.map((name) => `${name} ${this.values[name].textContent}`);
    this.spoken.textContent = `Job ${jobs.job[k]} of ${jobs.labels[jobs.worker[k]]}: ${said.join(", ")}`;
  }
}
