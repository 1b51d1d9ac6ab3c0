// The page of the rendezvous service. It shows /status.json, which the service pushes as events of
// /events. It asks for nothing while it is open, but for what rank.js shows. Every text of the
// status becomes textContent, so none is read as markup.

import {actionsOf, buttonsOf, giveToken, giveTokenOfAddress, isDashboard, learnRights, mayAct,
  whyNoOutput} from "./actions.js";
import {make} from "./elements.js";
import {bytes, count, duration} from "./numbers.js";
import {commandsOf, failuresOfRank, follow, plainText, rankOf, TRY_AGAIN_MS} from "./rank.js";

const NO_NEWS_MS = 15000; // the service sends an event every 5 s, at least
const RATE_SAMPLES = 6;
const NO_STEP_MS = 75000; // a step is reported every 30 s, at least
const SAVED_WITHIN_MS = 10000;
const RANKS_LISTED = 50; // in the table at a time
const LONG_WAIT_S = 10;
const MARKED_LAG = 2; // agents do not look at the same moment, so ranks differ by a step

// The causes of goodput.md, the wanted one first.
const CAUSES = {
  training: "training", checkpoint: "checkpoints", waiting_for_nodes: "waiting for nodes",
  starting: "starting", loading: "loading", recovery: "recovery", lost_work: "lost work",
  hang: "hang", stopped: "stopped by a person",
};

let status = null; // the newest one
const progress = new Map(); // by job: {generation, newest: step, samples: [{at, step}]}
const shown = new Map(); // by id of a section: the facts that it shows
let order = {field: null, down: false}; // of the table of ranks; field null: the slowest first
let firstListed = 0; // the index of the first rank in the table

const byId = (id) => document.getElementById(id);

// --- numbers as text -------------------------------------------------------------------------------

const percent = (share) => `${(100 * share).toFixed(1)} %`;
// Without steps, lost work is not known: see goodput.md.
const goodput = (times) => (times.steps_reported ? "" : "≤ ") + percent(times.goodput);
const clock = (time) => new Date(time).toLocaleTimeString();
const moment = (time) => new Date(time).toLocaleString();

// --- facts of a job --------------------------------------------------------------------------------

const inGeneration = (job, node) => "first_rank" in node && node.generation === job.generation;
const ranksOf = (job) => job.nodes.reduce(
  (sum, node) => sum + ("first_rank" in node ? node.slots : 0), 0);
const lastFailure = (job) => job.failures[job.failures.length - 1];

// Returns the step of a node. Only node 0 reports its steps regularly.
const stepOfNode = (job, node) => inGeneration(job, node) && node.node_rank === 0
  ? node.step ?? null : null;
function stepOf(job) {
  const steps = ranksKnown(job).map((row) => row.step).filter((step) => step !== undefined);
  if (steps.length > 0) return steps.reduce((a, b) => Math.max(a, b));
  return job.nodes.map((node) => stepOfNode(job, node)).find((step) => step !== null) ?? null;
}

// What agents tell of their ranks while this page is open. An older service tells nothing.
const ranksKnown = (job) => job.ranks ?? [];

// Notes the step of each job, for the steps per second. The time of the first step that is seen is
// not known.
function noteProgress() {
  const at = Date.parse(status.time);
  for (const job of status.jobs) {
    const step = stepOf(job);
    if (step === null) continue;
    const known = progress.get(job.id);
    if (!known || known.generation !== job.generation) {
      progress.set(job.id, {generation: job.generation, newest: step, samples: []});
      continue;
    }
    if (known.newest >= step) continue;
    known.newest = step;
    known.samples.push({at, step});
    if (known.samples.length > RATE_SAMPLES) known.samples.shift();
  }
  for (const id of progress.keys()) {
    if (!status.jobs.some((job) => job.id === id)) progress.delete(id);
  }
}

function stepsPerSecond(job) {
  const samples = progress.get(job.id)?.samples ?? [];
  if (samples.length < 2 || job.phase !== "running") return null;
  const [first, last] = [samples[0], samples[samples.length - 1]];
  if (Date.parse(status.time) - last.at > NO_STEP_MS) return null;
  return last.at > first.at ? (last.step - first.step) * 1000 / (last.at - first.at) : null;
}

function stateOf(job) {
  if (job.phase === "ended") {
    if (!job.verdict) return "has ended";
    return job.verdict.success ? "has succeeded"
      : `has failed with exit code ${job.verdict.exit_code}`;
  }
  if (job.phase === "running") {
    const nodes = job.nodes.filter((node) => "first_rank" in node).length;
    return `runs generation ${job.generation} with ${count(ranksOf(job), "rank")} on ` +
      count(nodes + job.nodes_left_out, "node");
  }
  const here = job.nodes.filter((node) => node.connected).length + job.nodes_left_out;
  if (here < job.min_nodes) return `waits for nodes: ${here} of ${job.min_nodes} are here`;
  return job.generation < 0 ? "forms its first generation"
    : `ends generation ${job.generation} and forms the next one`;
}

const hasFailed = (job) => job.phase === "ended" && job.verdict && !job.verdict.success;

// Returns the state of a node: a name for its colour, and text.
function stateOfNode(job, node) {
  if (job.phase !== "ended" && !node.connected) {
    const age = "silent_ms" in node ? `, silent for ${duration(node.silent_ms)}` : "";
    return ["lost", `not connected${age}`];
  }
  if (node.leaving) return ["stopping", `leaves: it got signal ${node.leaving}`];
  if (node.phase === "stopping") return ["stopping", "its workers are being ended"];
  if (node.phase === "finished") return ["finished", "its workers have finished"];
  if (node.phase === "running") return ["running", "runs its workers"];
  if (node.unfit) return ["lost", `is not fit: ${node.unfit}`];
  if (job.phase === "ended") return ["finished", "has ended"];
  return ["idle", "first_rank" in node ? "prepares its workers" : "waits as a spare"];
}

// --- how far it is ----------------------------------------------------------------------------------

const grouped = (number) => number.toLocaleString("en-US");
const rateText = (rate) => `${rate > 0 && rate < 1 ? rate.toPrecision(2) : rate.toFixed(1)} steps/s`;

// Returns "50 s", "43 min", "12 h 5 min" or "3 d 4 h".
function about(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

// Returns for how many milliseconds the steps after this one take; null: that is not known, or no
// step is left.
function timeLeft(step, total, rate) {
  return step !== null && total !== null && rate > 0 && step < total
    ? (total - step) * 1000 / rate : null;
}

// Returns {step, total, rate} of the foremost rank; null: the training has not told its steps.
function progressOf(job) {
  const step = stepOf(job);
  const foremost = ranksKnown(job).filter((row) => row.step === step);
  const known = (field) => foremost.find((row) => row[field] !== undefined)?.[field] ?? null;
  const total = known("total_steps");
  if (step === null || total === null) return null;
  const rate = stepsPerSecond(job) ?? known("steps_per_second");
  return {step, total, rate: job.phase === "running" ? rate : null};
}

function progressText({step, total, rate}) {
  const left = timeLeft(step, total, rate);
  return [`step ${grouped(step)} of ${grouped(total)}`, rate === null ? null : rateText(rate),
    left === null ? null : `about ${about(left)} left`].filter((part) => part).join(", ");
}

function progressOfJob(job) {
  const of = progressOf(job);
  if (!of) return null;
  const text = progressText(of);
  return make("section", {id: "progress"}, make("p", {}, text),
    make("progress", {max: of.total, value: Math.max(0, of.step), "aria-label": text}));
}

// --- generations -----------------------------------------------------------------------------------

// How a generation ended: its mark and words. No colour stands alone.
const ENDS = {
  running: ["▶", "runs"], failed: ["✕", "failed"], resized: ["⇄", "was resized"],
  restarted: ["↻", "was restarted by a person"], interrupted: ["‖", "was interrupted"],
  stopped: ["■", "was stopped"], succeeded: ["✓", "succeeded"], unknown: ["?", "has ended"],
};

// An older service tells nothing of generations.
const generationsKnown = (job) => job.generations ?? [];

function endOf(job, i) {
  const {end} = generationsKnown(job)[i];
  if (end) return end in ENDS ? end : "unknown";
  return i === generationsKnown(job).length - 1 && job.phase === "running" ? "running" : "unknown";
}

// Returns the begin and the end of what the time axis shows, and for each generation its own. A
// bound that is not known is that of the next generation, or of the axis.
function axisOf(job) {
  const all = generationsKnown(job);
  const time = (text) => text === undefined ? undefined : Date.parse(text);
  const known = all.flatMap(({since, until}) => [time(since), time(until)])
    .filter((one) => one !== undefined);
  const now = Date.parse(status.time);
  const end = job.phase === "ended" && known.length > 0 ? Math.max(...known) : now;
  const begin = Math.min(...known, end - 1);
  const bounds = all.map(({since, until}, i) => [
    time(since) ?? time(all[i - 1]?.until) ?? begin, time(until) ?? time(all[i + 1]?.since) ?? end]);
  return {begin, end, bounds, isKnown: known.length > 0};
}

function sentenceOf(job, i, {bounds}) {
  const {number, since, until} = generationsKnown(job)[i];
  const kind = endOf(job, i);
  const lasted = duration(bounds[i][1] - bounds[i][0]);
  const name = `Generation ${number}`;
  if (kind === "running") {
    return since ? `${name} has run for ${lasted}` : `${name} runs; it is not known since when`;
  }
  if (kind === "unknown") return `${name} has ended; it is not known when and why`;
  const text = `${name} ${ENDS[kind][1]}`;
  return since && until ? `${text} after ${lasted}`
    : `${text}; it is not known ${since ? "when" : "since when it ran"}`;
}

// Returns the timeline. paintGenerations() keeps the bars and times up to date.
function generationsOfJob(job) {
  const all = generationsKnown(job);
  if (all.length === 0) return null;
  const row = ({nodes, ranks, since, what}, i) => make("li", {"data-generation": i},
    make("p", {}, make("span", {class: "mark", "aria-hidden": "true"}, ENDS[endOf(job, i)][0]), " ",
      make("strong", {}), what ? `: ${what}` : null,
      make("span", {class: "dim"}, nodes ? `, ${count(ranks, "rank")} on ${count(nodes, "node")}` : "",
        since ? `, formed ${moment(since)}` : "")),
    make("div", {class: "track", "aria-hidden": "true"},
      make("div", {class: `life is-${endOf(job, i)}`})));
  const first = all[0].number;
  return make("section", {id: "generations"}, make("h2", {}, "Generations"),
    make("ul", {class: "timeline"}, ...all.map(row).reverse()),
    make("p", {class: "axis dim"}, make("span", {}), make("span", {})),
    first > 0 ? make("p", {class: "dim"}, first === 1 ? "Generation 0 is not known any more."
      : `Generations 0 to ${first - 1} are not known any more.`) : null);
}

function paintGenerations(job) {
  const section = byId("generations");
  if (!section) return;
  const axis = axisOf(job);
  const place = (time) => 100 * (time - axis.begin) / (axis.end - axis.begin);
  for (const item of section.querySelectorAll("[data-generation]")) {
    const i = Number(item.dataset.generation);
    setText(item.querySelector("strong"), sentenceOf(job, i, axis));
    const [begin, end] = axis.bounds[i].map(place);
    const {style} = item.querySelector(".life");
    style.left = `min(${begin.toFixed(2)}%, 100% - 4px)`;
    style.width = `${Math.max(0, end - begin).toFixed(2)}%`;
  }
  const [begin, end] = section.querySelectorAll(".axis span");
  setText(begin, axis.isKnown ? moment(axis.begin) : "");
  setText(end, job.phase === "ended" ? moment(axis.end) : "now");
}

// --- sections --------------------------------------------------------------------------------------

function table(headings, rows) {
  const attributes = (kind) => kind ? {class: kind} : {};
  const cells = (tag, row) => row.map(
    (cell, i) => make(tag, attributes(headings[i][1]), cell ?? ""));
  return make("div", {class: "scroll", tabindex: "0"}, make("table", {},
    make("thead", {}, make("tr", {}, ...cells("th", headings.map(([text]) => text)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells("td", row))))));
}

function jobList() {
  const section = make("section", {id: "jobs"}, make("h1", {}, count(status.jobs.length, "job")));
  if (status.jobs.length === 0) {
    section.append(make("p", {class: "dim"}, "No job is known to this service."));
    return section;
  }
  section.append(table(
    [["job", "id"], ["state", ""], ["step", "number"], ["steps/s", "number"],
      ["goodput", "number"], ["restarts", "number"], ["for", "number"]],
    status.jobs.map((job) => [
      make("a", {href: `#job=${encodeURIComponent(job.id)}`, id: `job-${job.id}`}, job.id),
      make("span", hasFailed(job) ? {class: "bad"} : {}, stateOf(job)),
      stepOf(job), stepsPerSecond(job)?.toFixed(2),
      job.times ? goodput(job.times) : "", job.restarts_used, duration(job.since_ms_ago)])));
  if (status.jobs_left_out > 0) {
    section.append(make("p", {}, `${count(status.jobs_left_out, "job")} more`));
  }
  return section;
}

const NOT_RESTARTED = "; not restarted: ";

// Returns the headline of a failure and, if it is known, why: the first line of the message, or the
// last line that the worker wrote to stderr.
function failureText(failure, headline) {
  const {message, stderr} = failure.first?.[0] ?? {};
  const why = plainText(message || stderr?.at(-1) || "").split("\n")[0];
  if (headline.includes(why)) return headline;
  const [what, ...rest] = headline.split(NOT_RESTARTED);
  return [`${what}: ${why}`, ...rest].join(NOT_RESTARTED);
}

function headOf(job) {
  const fact = (name, value) => value === null || value === undefined ? null
    : make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const failure = lastFailure(job);
  const former = failure && !job.verdict
    ? `Generation ${failure.generation} failed: ${failureText(failure, failure.what)}` : null;
  const headline = job.verdict?.headline;
  // A job that was stopped, or that lacks nodes, ended for another reason than its last failure.
  const isOfFailure = failure && headline?.startsWith(failure.what.replace(/\.\.\.$/, ""));
  const reason = !hasFailed(job) ? former
    : isOfFailure ? failureText(failure, headline) : headline;
  return make("section", {},
    make("h1", {}, job.id),
    make("p", {class: hasFailed(job) ? "state bad" : "state"}, `This job ${stateOf(job)}.`, " ",
      saverOf(job.id, "download", "Download as JSON", allOf), " ",
      saverOf(job.id, "report", "Download the report", reportOf)),
    reason ? make("p", {class: "bad", id: "reason"}, reason) : null,
    make("dl", {class: "facts"},
      fact("step", stepOf(job)), fact("steps/s", stepsPerSecond(job)?.toFixed(2)),
      fact("generation", job.generation < 0 ? null : job.generation),
      fact("in it for", job.phase === "running" && "generation_since_ms_ago" in job
        ? duration(job.generation_since_ms_ago) : null),
      fact("restarts", `${job.restarts_used} of ${job.max_restarts}`),
      fact("nodes", job.min_nodes === job.max_nodes ? job.min_nodes
        : `${job.min_nodes} to ${job.max_nodes}`),
      fact("known for", duration(job.since_ms_ago))));
}

const jobNamed = (id) => status.jobs.find((one) => one.id === id);

// Returns all that is known of the job, and what of it --report-file writes (verdicts.md).
const allOf = (id) => ({time: status.time, host: status.host, job: jobNamed(id)});
function reportOf(id) {
  const {verdict, restarts_used, max_restarts, times, failures} = jobNamed(id);
  return {version: 1, ddprun: status.version, job: id, host: status.host,
    state: verdict ? "ended" : "running", exit_code: verdict?.exit_code, what: verdict?.headline,
    restarts_used, max_restarts, times, failed_generations: failures};
}

// Returns a button that saves what of(id) returns.
function saverOf(id, key, text, of) {
  const button = make("button", {id: key}, text);
  button.addEventListener("click", () => {
    const blob = new Blob([JSON.stringify(of(id), null, 2)], {type: "application/json"});
    const url = URL.createObjectURL(blob);
    make("a", {href: url, download: `${id.replace(/[^\w.-]/g, "_")}-${key}.json`}).click();
    setTimeout(() => URL.revokeObjectURL(url), SAVED_WITHIN_MS);
  });
  return button;
}

function goodputOf(job) {
  const {times} = job;
  if (!times || times.wall_ms <= 0) return null;
  const parts = Object.entries(CAUSES).map(([cause, text]) => ({
    cause, text, ms: times.causes_ms[cause] ?? 0})).filter(({ms}) => ms > 0);
  const bar = make("div", {class: "bar", role: "img", "aria-label": times.what});
  for (const {cause, text, ms} of parts) {
    const part = make("div", {class: cause, title: `${text}: ${duration(ms)}`});
    part.style.width = `${100 * ms / times.wall_ms}%`;
    bar.append(part);
  }
  return make("section", {}, make("h2", {}, "Goodput"), make("p", {}, times.what), bar,
    make("ul", {class: "legend"}, ...parts.map(({cause, text, ms}) => make("li", {},
      make("i", {class: cause}), `${text} ${percent(ms / times.wall_ms)}, ${duration(ms)}`))));
}

// The grid of nodes. paintRanks() compares with what it has shown, because a look at the page would
// cost more.
const cells = new Map(); // by rank: {cell, text: of its node, ofNode: its class, kind, lines}
const stepCells = new Map(); // by node
let pointed = null; // the rank under the pointer

function nodesOf(job) {
  cells.clear();
  stepCells.clear();
  if (job.nodes.length === 0 && job.phase === "ended") return null;
  const place = (node) => node.node_rank ?? Infinity;
  const nodes = [...job.nodes].sort((a, b) => place(a) < place(b) ? -1 : 1);
  const rows = nodes.map((node) => {
    const [kind, text] = stateOfNode(job, node);
    const ranks = make("div", {class: "ranks"});
    if ("first_rank" in node) {
      for (let rank = node.first_rank; rank <= node.last_rank; ++rank) {
        const cell = make("span", {class: `is-${kind}`, "data-rank": rank}, rank);
        // A rank that has moved may still be on the list of its former node.
        if (!cells.has(rank) || inGeneration(job, node)) {
          cells.set(rank, {cell, text, ofNode: `is-${kind}`, kind: `is-${kind}`, lines: ""});
        }
        ranks.append(cell);
      }
    }
    const state = make("div", {}, make("span", kind === "lost" ? {class: "bad"} : {}, text),
      node.log_trouble ? make("p", {class: "bad"}, node.log_trouble) : null);
    const step = make("span", {"data-node": node.node_rank ?? ""}, stepOfNode(job, node));
    if ("node_rank" in node) stepCells.set(node.node_rank, step);
    return [node.node_rank, node.host, state, ranks, step];
  });
  return make("section", {}, make("h2", {}, "Nodes and ranks"),
    table([["node", "number"], ["host", "name"], ["state", ""], ["ranks", ""], ["step", "number"]],
      rows),
    job.nodes_left_out > 0 ? make("p", {}, `${count(job.nodes_left_out, "node")} more`) : null,
    make("p", {class: "dim", id: "legend"}, LEGEND));
}

// --- ranks ---------------------------------------------------------------------------------------

const LEGEND = "▼12: 12 steps behind · ◷: in one collective for 10 s or longer · !: slow · " +
  "‖: stopped · ✕: failed · ✓: done · lines: solid for its processor, dotted for its memory " +
  "against that of the largest rank";

const seconds = (number) => number === undefined ? undefined : duration(number * 1000);
const share = (number) => number === undefined ? undefined : `${number} %`;

// The fields of a rank: field, heading, kind of the column, its text.
const FIELDS = [
  ["rank", "rank", "number"], ["node", "node", "number"], ["host", "host", "name"],
  ["state", "state", ""], ["step", "step", "number"],
  ["steps_per_second", "steps/s", "number", (rate) => rate?.toFixed(2)],
  ["lag", "steps behind", "number"], ["collective", "collective", "name"],
  ["waiting_s", "in it for", "number", seconds], ["cpu_percent", "CPU", "number", share],
  ["memory_bytes", "memory", "number", bytes], ["gpu_percent", "GPU", "number", share],
  ["gpu_memory_bytes", "GPU memory", "number", bytes],
  ["gpu_own_memory_bytes", "own GPU memory", "number", bytes],
  ["restarts", "restarts", "number"], ["limits", "limited by", ""], ["slow", "slow", ""], ["local_rank", "local rank", "number"], ["pid", "process", "number"],
];

const textOf = ([field, , , text], row) => (text ? text(row[field]) : row[field]) ?? "";
const columnsOf = (rows) => FIELDS.filter(
  ([field]) => rows.some((row) => row[field] !== undefined));
const hrefOf = (job, rank) => `#job=${encodeURIComponent(job.id)}&rank=${rank}`;
const hasEnded = (row) => row.state !== "running" && row.state !== "stopped";

// Returns what sorts the slowest first. A rank for which the others wait is itself in no call.
const slowness = (row) => [row.state === "running" ? 1 : 0, row.slow ? 0 : 1, -(row.lag ?? 0),
  row.waiting_s ?? 0, row.steps_per_second ?? Infinity];

function sorted(rows) {
  const {field, down} = order;
  const keys = new Map(rows.map((row) => [row, field === null ? slowness(row) : [row[field]]]));
  return [...rows].sort((a, b) => {
    const [left, right] = [keys.get(a), keys.get(b)];
    for (let i = 0; i < left.length; ++i) {
      if (left[i] === right[i]) continue;
      if (left[i] === undefined) return 1;
      if (right[i] === undefined) return -1;
      return (left[i] < right[i] ? -1 : 1) * (down ? -1 : 1);
    }
    return a.rank - b.rank;
  });
}

// Returns the classes and the mark of a rank in the grid. No mark is a colour alone.
function markOf(row) {
  if (row.state === "stopped") return ["is-stopping", "‖"];
  if (row.state === "exited with 0") return ["is-finished", "✓"];
  if (hasEnded(row)) return ["is-lost", "✕"];
  if (row.slow) return ["is-running is-slow", "!"];
  if (row.lag >= MARKED_LAG) {
    return ["is-running is-behind", `▼${row.lag > 999 ? "999+" : row.lag}`];
  }
  return ["is-running", row.waiting_s >= LONG_WAIT_S ? "◷" : ""];
}

// Returns ascending numbers as "0-3,7".
function rangesOf(numbers) {
  const ranges = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([first, last]) => first === last ? first : `${first}-${last}`).join(",");
}

// Returns which ranks are slow. Empty: none is.
function slowOf(job) {
  const slow = ranksKnown(job).filter((row) => row.slow);
  if (slow.length === 0) return "";
  if (slow.length === 1) return `rank ${slow[0].rank} is slow: ${slow[0].slow}`;
  return `ranks ${rangesOf(slow.map(({rank}) => rank).sort((a, b) => a - b))} are slow`;
}

// Returns which ranks have been in a collective for long, and which have not. Empty: no rank has.
function waitsOf(job) {
  const named = (rows, has, have) => (rows.length === 1 ? `rank ${rows[0].rank} ${has}`
    : `ranks ${rangesOf(rows.map(({rank}) => rank).sort((a, b) => a - b))} ${have}`);
  const waits = (row) => row.waiting_s >= LONG_WAIT_S;
  const waiting = ranksKnown(job).filter(waits);
  const others = ranksKnown(job).filter((row) => !waits(row));
  const hidden = job.ranks_left_out;
  if (waiting.length === 0) return "";
  return `${named(waiting, "has", "have")} waited ${LONG_WAIT_S} s or longer in a collective${
    others.length > 0 ? `; ${named(others, "has not", "have not")}` : ""}${
    hidden > 0 ? `; ${count(hidden, "rank")} ${hidden === 1 ? "is" : "are"} not shown` : ""}`;
}

// Returns what is wrong with the log files of nodes. Empty: nothing is.
function logTroubleOf(job) {
  const [first, ...others] = job.nodes.filter((node) => node.log_trouble);
  if (!first) return "";
  return `${first.host}: ${first.log_trouble}${
    others.length > 0 ? `; also on ${count(others.length, "other node")}` : ""}`;
}

// Changes the text of an element that has nothing else.
function setText(element, text) {
  if (!element.firstChild) element.textContent = text;
  else if (element.firstChild.data !== text) element.firstChild.data = text;
}

// Returns a share of 100 in steps of 10, so that few elements change.
const tenth = (part) => String(Math.min(100, 10 * Math.round(10 * part)) || 0);

// Returns what the grid says of a rank when the pointer is on it.
function titleOf(rank, row, text) {
  if (!row) return `rank ${rank}: ${text}`;
  return [`rank ${rank}: ${row.state}`, row.slow,
    row.step === undefined ? "" : `step ${row.step}`,
    row.lag > 0 ? `${count(row.lag, "step")} behind` : "", row.collective,
    row.waiting_s === undefined ? "" : `in it for ${seconds(row.waiting_s)}`,
    share(row.cpu_percent) ? `CPU ${share(row.cpu_percent)}` : "", bytes(row.memory_bytes),
  ].filter((part) => part).join(", ");
}

// The title is that of one rank: those of all would cost most of an update.
function paintTitle(job) {
  const of = cells.get(pointed);
  if (!of) return;
  const row = ranksKnown(job).find((one) => one.rank === pointed);
  of.cell.title = titleOf(pointed, row, of.text);
}

// Shows the ranks in the grid of nodes. The grid itself is made only when nodes change.
function paintRanks(job) {
  const rows = new Map(ranksKnown(job).map((row) => [row.rank, row]));
  const most = ranksKnown(job).reduce((most, row) => Math.max(most, row.memory_bytes ?? 0), 1);
  const steps = new Map();
  for (const {node, step} of rows.values()) {
    if (step !== undefined) steps.set(node, Math.max(step, steps.get(node) ?? step));
  }
  for (const [node, step] of steps) {
    if (stepCells.has(node)) setText(stepCells.get(node), String(step));
  }
  byId("legend")?.toggleAttribute("hidden", rows.size === 0);
  for (const [rank, of] of cells) {
    const row = rows.get(rank);
    const [kind, mark] = row ? markOf(row) : [of.ofNode, ""];
    if (of.kind !== kind) of.cell.className = of.kind = kind;
    setText(of.cell, mark ? `${rank} ${mark}` : String(rank));
    // Backgrounds, because they change without a layout.
    const lines = `${tenth((row?.cpu_percent ?? 0) / 100)}% 2px, ${
      tenth((row?.memory_bytes ?? 0) / most)}% 2px`;
    if (of.lines !== lines) of.cell.style.backgroundSize = of.lines = lines;
  }
  paintTitle(job);
}

// Returns the table of ranks, still empty. fillRanks() keeps it up to date.
function ranksOfJob(job) {
  const rows = ranksKnown(job);
  if (rows.length === 0) return null;
  const sortBy = (field) => () => {
    order = {field, down: order.field === field && !order.down};
    firstListed = 0;
    render();
  };
  const heading = ([field, text, kind]) => {
    const isChosen = order.field === field;
    const button = make("button", {id: `by-${field}`},
      `${text}${isChosen ? (order.down ? " ▼" : " ▲") : ""}`);
    button.addEventListener("click", sortBy(field));
    return make("th", {class: kind, "aria-sort":
      isChosen ? (order.down ? "descending" : "ascending") : "none"}, button);
  };
  const slowest = make("button", {id: "by-slowest", "aria-pressed": order.field === null},
    "slowest first");
  slowest.addEventListener("click", sortBy(null));
  const turn = (id, text, by) => {
    const button = make("button", {id}, text);
    button.addEventListener("click", () => {
      firstListed += by;
      render();
    });
    return button;
  };
  const end = Math.min(firstListed + RANKS_LISTED, rows.length);
  const pages = rows.length <= RANKS_LISTED ? [] : [
    firstListed > 0 ? turn("former-ranks", "◀ former", -RANKS_LISTED) : null,
    ` ${firstListed + 1} to ${end} of ${rows.length} `,
    end < rows.length ? turn("next-ranks", "next ▶", RANKS_LISTED) : null];
  return make("section", {}, make("h2", {}, "Ranks"),
    make("p", {}, slowest, " ", ...pages),
    make("div", {class: "scroll", tabindex: "0"}, make("table", {id: "ranks"},
      make("thead", {}, make("tr", {}, ...columnsOf(rows).map(heading))), make("tbody", {}))),
    job.ranks_left_out > 0 ? make("p", {}, `${count(job.ranks_left_out, "rank")} more`) : null);
}

function fillRanks(job) {
  const body = document.querySelector("#ranks tbody");
  if (!body) return;
  const columns = columnsOf(ranksKnown(job));
  const rows = sorted(ranksKnown(job))
    .slice(firstListed, firstListed + RANKS_LISTED);
  const focused = body.contains(document.activeElement) ? document.activeElement.textContent : null;
  while (body.children.length > rows.length) body.lastChild.remove();
  while (body.children.length < rows.length) {
    body.append(make("tr", {}, ...columns.map(([field, , kind]) =>
      make("td", {class: kind}, field === "rank" ? make("a", {}) : null))));
  }
  rows.forEach((row, i) => {
    const {cells} = body.children[i];
    columns.forEach((column, j) => {
      if (column[0] !== "rank") return setText(cells[j], String(textOf(column, row)));
      const link = cells[j].firstChild;
      setText(link, String(row.rank));
      if (link.getAttribute("href") !== hrefOf(job, row.rank)) link.href = hrefOf(job, row.rank);
    });
  });
  if (focused !== null && document.activeElement.textContent !== focused) {
    [...body.querySelectorAll("a")].find((link) => link.textContent === focused)
      ?.focus({preventScroll: true});
  }
}

function chosenRankOf(job, row, rank) {
  const node = job.nodes.find((one) => one.first_rank <= rank && rank <= one.last_rank);
  const facts = row ? FIELDS.filter(([field]) => row[field] !== undefined)
    .map((field) => make("div", {}, make("dt", {}, field[1]), make("dd", {}, textOf(field, row))))
    : [];
  return make("section", {id: "chosen-rank"}, make("h2", {}, `Rank ${rank}`),
    row ? make("dl", {class: "facts"}, ...facts)
      : make("p", {}, node ? `Node ${node.node_rank}: ${stateOfNode(job, node)[1]}. ` +
        "Nothing more is known of the rank now." : "The job has no such rank now."),
    make("p", {},
      make("a", {href: `#job=${encodeURIComponent(job.id)}`, id: "close-rank"}, "Close")));
}

// Returns why the rank was started again.
function restartsOfRank(job, rank, failures) {
  const others = generationsKnown(job).filter(
    ({end}) => end && end !== "failed" && end !== "succeeded");
  if (failures.length === 0 && others.length === 0) return null;
  const rows = [...failures.map(({generation, what, own}) => [generation, what, own]),
    ...others.map(({number, end, what}) => [number, `${(ENDS[end] ?? ENDS.unknown)[1]}${
      what ? `: ${what}` : ""}`, ""])].sort(([a], [b]) => b - a);
  return make("section", {id: "rank-restarts"}, make("h3", {}, "Restarts"),
    table([["generation", "number"], ["why it ended", "long"], [`rank ${rank}`, "long"]], rows));
}

// Returns what is known of the first failure: the headline, its message, what helps, its last lines.
function detailsOf(failure) {
  const first = failure.first?.[0] ?? {};
  return [failure.what, first.message, first.hint, ...(first.stderr ?? [])]
    .filter((text) => text).join("\n");
}

function failuresOf(job) {
  if (job.failures.length === 0) return null;
  return make("section", {}, make("h2", {}, "Generations that failed"),
    table([["time", "time"], ["generation", "number"], ["kind", "name"], ["what failed first", "long"]],
      [...job.failures].reverse().map((failure) => [
        moment(failure.time), failure.generation, failure.kind, detailsOf(failure)])));
}

function eventsOf(job) {
  return make("section", {}, make("h2", {}, "Events"),
    table([["time", "time"], ["what", "long"]],
      [...job.events].reverse().map((event) => [moment(event.time), event.what])));
}

// --- the page --------------------------------------------------------------------------------------

// Returns the job and the rank of the address; null: it has none.
function chosen() {
  const match = /^#job=([^&]*)(?:&rank=(\d+))?$/.exec(location.hash);
  try {
    if (!match) return [null, null];
    return [decodeURIComponent(match[1]), match[2] ? Number(match[2]) : null];
  } catch {
    return [null, null];
  }
}

// Shows these sections. One that would show the same facts stays as it is, with its selection,
// focus and scrolling.
function show(sections) {
  const main = byId("main");
  const focused = document.activeElement;
  const place = focused?.closest("[data-section]")?.dataset.section;
  const wanted = [];
  for (const [id, facts, build] of sections) {
    const text = JSON.stringify(facts);
    const old = main.querySelector(`:scope > [data-section="${id}"]`);
    if (old && shown.get(id) === text) {
      wanted.push(old);
      continue;
    }
    const section = build();
    shown.set(id, text);
    if (!section) continue;
    section.dataset.section = id;
    const scrolled = old?.querySelector(".scroll")?.scrollLeft;
    if (old) old.replaceWith(section);
    if (scrolled) section.querySelector(".scroll").scrollLeft = scrolled;
    wanted.push(section);
  }
  // A section that is taken out and put back loses its scroll position.
  for (const one of [...main.children]) if (!wanted.includes(one)) one.remove();
  wanted.forEach((one, i) => {
    if (main.children[i] !== one) main.insertBefore(one, main.children[i] ?? null);
  });
  if (focused && document.activeElement !== focused) {
    const again = focused.id ? byId(focused.id)
      : main.querySelector(`:scope > [data-section="${place}"] .scroll`);
    again?.focus({preventScroll: true});
  }
}

const hostOf = (id, rank) => ranksKnown(jobNamed(id) ?? {})
  .find((row) => row.rank === rank)?.host;
const generationOf = (id) => jobNamed(id)?.generation ?? -1;

function render() {
  if (!status) return;
  byId("service").textContent = `${status.host} · ${status.version}`;
  const [id, rank] = chosen();
  const job = id === null ? null : jobNamed(id);
  if (job) {
    document.title = `${job.id} ${stateOf(job)}`;
    const {nodes, failures, events, times, ranks, generations, ...head} = job;
    const row = ranksKnown(job).find((one) => one.rank === rank);
    if (firstListed >= ranksKnown(job).length) firstListed = 0;
    const fields = columnsOf(ranksKnown(job)).map(([field]) => field);
    // How long a connected node was silent is not shown.
    const places = nodes.map((node) => node.connected ? {...node, silent_ms: 0} : node);
    show([["head", [head, stepOf(job), stepsPerSecond(job), nodes.length, failures.length],
      () => headOf(job)],
    ...[["waits", waitsOf(job)], ["slow", slowOf(job)],
      ["log-trouble", logTroubleOf(job)]].map(([key, text]) =>
      [key, [text], () => text && make("p", {class: "bad", id: key}, text)]),
    ["progress", [id, progressOf(job)], () => progressOfJob(job)],
    ["actions", [id, buttonsOf(job)], () => actionsOf(job, () => generationOf(id), render)],
    ["goodput", [id, times], () => goodputOf(job)],
    ["generations", [id, job.phase, generations], () => generationsOfJob(job)],
    ...(rank === null ? []
      : [["rank", [id, rank, row, row ? null : places], () => chosenRankOf(job, row, rank)],
        ["rank-details", [id, rank, isDashboard(), whyNoOutput(), mayAct()],
          () => rankOf(id, rank, () => hostOf(id, rank), () => generationOf(id), render)],
        ...(isDashboard() ? [] : [["rank-elsewhere", [id, rank, row?.host, whyNoOutput(), mayAct()],
          () => commandsOf(id, rank, row?.host)]]),
        ["rank-restarts", [id, rank, failures, generations],
          () => restartsOfRank(job, rank, failuresOfRank(job, rank))]]),
    ["nodes", [id, job.phase, job.generation, places], () => nodesOf(job)],
    ["ranks", [id, order, firstListed, fields, ranksKnown(job).length, job.ranks_left_out], () => ranksOfJob(job)],
    ["failures", [id, failures], () => failuresOf(job)],
    ["events", [id, events], () => eventsOf(job)]]);
    paintGenerations(job);
    paintRanks(job);
    fillRanks(job);
  } else if (id !== null) {
    document.title = "ddprun";
    show([["none", [id, status.jobs_left_out], () => make("section", {},
      make("p", {}, "The job ", make("code", {}, id),
        status.jobs_left_out > 0 ? " is not among the jobs shown." : " is not known to this service."),
      make("p", {}, make("a", {href: "#"}, "All jobs")))]]);
  } else {
    document.title = `ddprun: ${count(status.jobs.length, "job")}`;
    const jobs = status.jobs.map(({ranks, ...job}) => [job, stepOf({ranks, ...job})]);
    show([["jobs", [jobs, status.jobs_left_out], jobList]]);
  }
  const since = generationsKnown(job ?? {}).at(-1)?.since; // differs in a new run of the job
  follow(job && source ? byId("rank-details") : null,
    `${job?.phase} ${job?.generation} ${since} ${connections}`, job?.phase === "ended");
}

// --- the connection --------------------------------------------------------------------------------

let source = null; // null: there is no connection
let connections = 0; // so far
let silence = 0;
let isRedirected = false;

function say(text, isBad) {
  const link = byId("link");
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("bad", isBad);
}

// Says why nothing new comes, and how old the state is that is shown.
function sayOld(why) {
  say(status ? `${why}; this is the state of ${clock(status.time)}` : why, true);
}

function disconnect() {
  clearTimeout(silence);
  source?.close();
  source = null;
  follow(null);
}

// A hidden page has no connection: a browser opens only 6 at once to a service.
function connect() {
  if (source || document.hidden) return;
  const opened = new EventSource("events");
  source = opened;
  opened.onopen = () => ++connections;
  opened.onmessage = (event) => {
    status = JSON.parse(event.data);
    isRedirected = false;
    if (status.trouble) sayOld(status.trouble);
    else say("live", false);
    byId("token").hidden = true;
    clearTimeout(silence);
    silence = setTimeout(() => sayOld("no news"), NO_NEWS_MS);
    noteProgress();
    render();
  };
  opened.onerror = () => {
    if (opened !== source) return;
    if (opened.readyState !== EventSource.CLOSED) return sayOld("not connected");
    disconnect();
    findOutWhy();
  };
}

// The service has refused the events. EventSource does not say why.
async function findOutWhy() {
  let answer = null;
  try {
    answer = await fetch("events", {method: "HEAD", redirect: "manual"});
  } catch {
    // It does not answer.
  }
  if (answer?.status === 401 && (await learnRights()).is_dashboard) {
    return sayOld("open the address that ddprun dashboard has printed; it works once");
  }
  if (answer?.status === 401) {
    sayOld("a token is needed");
    byId("token").hidden = false;
    return byId("token-text").focus();
  }
  if (answer?.type === "opaqueredirect") {
    // The first answer makes the service look for the one that leads now. So the second is current.
    if (isRedirected) return location.reload();
    isRedirected = true;
    sayOld("another service leads; going there");
  } else {
    sayOld(answer?.ok ? "too many pages are open; trying again" : "refused; trying again");
  }
  setTimeout(connect, TRY_AGAIN_MS);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  if (source) sayOld("paused");
  disconnect();
});

byId("token").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = byId("token-text");
  const error = byId("token-error");
  error.textContent = await giveToken(text.value.trim());
  if (error.textContent) return;
  text.value = "";
  connect();
  learnRights().then(render);
});

byId("main").addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // for the browser
  const cell = event.target.closest(".ranks span");
  const row = event.target.closest("#ranks tbody tr");
  const [id] = chosen();
  if (cell && id !== null) location.hash = hrefOf({id}, cell.dataset.rank);
  // A selected text is not a click.
  else if (row && getSelection().isCollapsed) location.hash = row.querySelector("a").hash;
});

byId("main").addEventListener("pointerover", (event) => {
  pointed = Number(event.target.closest(".ranks span")?.dataset.rank ?? NaN);
  const job = jobNamed(chosen()[0]);
  if (job) paintTitle(job);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") byId("close-rank")?.click();
});

window.addEventListener("hashchange", (event) => {
  render();
  const [id, rank] = chosen();
  if (rank !== null) return byId("chosen-rank")?.scrollIntoView({block: "nearest"});
  if (!event.oldURL.includes(`#job=${encodeURIComponent(id)}&rank=`)) window.scrollTo(0, 0);
});
await giveTokenOfAddress();
connect();
learnRights().then(render);
