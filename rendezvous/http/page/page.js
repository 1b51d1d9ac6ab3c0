// The page of the rendezvous service. It shows /status.json, which the service pushes as events of
// /events. It asks for nothing while it is open. Every text of the status becomes textContent, so
// none is read as markup.

const NO_NEWS_MS = 15000; // the service sends an event every 5 s, at least
const TRY_AGAIN_MS = 10000;
const RATE_SAMPLES = 6;
const NO_STEP_MS = 75000; // a step is reported every 30 s, at least

// The causes of goodput.md, the wanted one first.
const CAUSES = {
  training: "training", checkpoint: "checkpoints", waiting_for_nodes: "waiting for nodes",
  starting: "starting", loading: "loading", recovery: "recovery", lost_work: "lost work",
  hang: "hang", stopped: "stopped by a person",
};

let status = null; // the newest one
const progress = new Map(); // by job: {generation, newest: step, samples: [{at, step}]}
const shown = new Map(); // by id of a section: the facts that it shows

const byId = (id) => document.getElementById(id);

// Returns an element with these attributes and children. A child that is a text stays a text.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined)
    .map((child) => child instanceof Node ? child : String(child)));
  return element;
}

// --- numbers as text -------------------------------------------------------------------------------

function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 360000) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
// Without steps, lost work is not known: see goodput.md.
const goodput = (times) => (times.steps_reported ? "" : "≤ ") + percent(times.goodput);
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
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
const stepOf = (job) => job.nodes.map((node) => stepOfNode(job, node))
  .find((step) => step !== null) ?? null;

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
  if (job.phase === "ended") return ["finished", "has ended"];
  return ["idle", "first_rank" in node ? "prepares its workers" : "waits as a spare"];
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

function headOf(job) {
  const fact = (name, value) => value === null || value === undefined ? null
    : make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const failure = lastFailure(job);
  const former = failure && !job.verdict
    ? `Generation ${failure.generation} failed: ${failure.what}` : null;
  const reason = hasFailed(job) ? job.verdict.headline : former;
  return make("section", {},
    make("h1", {}, job.id),
    make("p", {class: hasFailed(job) ? "state bad" : "state"}, `This job ${stateOf(job)}.`),
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

function nodesOf(job) {
  if (job.nodes.length === 0 && job.phase === "ended") return null;
  const place = (node) => node.node_rank ?? Infinity;
  const nodes = [...job.nodes].sort((a, b) => place(a) < place(b) ? -1 : 1);
  const rows = nodes.map((node) => {
    const [kind, text] = stateOfNode(job, node);
    const ranks = make("div", {class: "ranks"});
    if ("first_rank" in node) {
      for (let rank = node.first_rank; rank <= node.last_rank; ++rank) {
        ranks.append(make("span", {class: `is-${kind}`, title: `rank ${rank}: ${text}`}, rank));
      }
    }
    return [node.node_rank, node.host, make("span", kind === "lost" ? {class: "bad"} : {}, text),
      ranks, stepOfNode(job, node)];
  });
  return make("section", {}, make("h2", {}, "Nodes and ranks"),
    table([["node", "number"], ["host", "name"], ["state", ""], ["ranks", ""], ["step", "number"]],
      rows),
    job.nodes_left_out > 0 ? make("p", {}, `${count(job.nodes_left_out, "node")} more`) : null);
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

function chosenJob() {
  const match = /^#job=(.*)$/.exec(location.hash);
  try {
    return match ? decodeURIComponent(match[1]) : null;
  } catch {
    return null;
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
  if (wanted.length !== main.children.length || wanted.some((one, i) => main.children[i] !== one)) {
    main.replaceChildren(...wanted);
  }
  if (focused && document.activeElement !== focused) {
    const again = focused.id ? byId(focused.id)
      : main.querySelector(`:scope > [data-section="${place}"] .scroll`);
    again?.focus({preventScroll: true});
  }
}

function render() {
  if (!status) return;
  byId("service").textContent = `${status.host} · ${status.version}`;
  const id = chosenJob();
  const job = id === null ? null : status.jobs.find((one) => one.id === id);
  if (job) {
    document.title = `${job.id} ${stateOf(job)}`;
    const {nodes, failures, events, times, ...head} = job;
    // How long a connected node was silent is not shown.
    const places = nodes.map((node) => node.connected ? {...node, silent_ms: 0} : node);
    show([["head", [head, stepOf(job), stepsPerSecond(job), nodes.length, failures.length],
      () => headOf(job)],
    ["goodput", [id, times], () => goodputOf(job)],
    ["nodes", [id, job.phase, job.generation, places], () => nodesOf(job)],
    ["failures", [id, failures], () => failuresOf(job)],
    ["events", [id, events], () => eventsOf(job)]]);
  } else if (id !== null) {
    document.title = "ddprun";
    show([["none", [id, status.jobs_left_out], () => make("section", {},
      make("p", {}, "The job ", make("code", {}, id),
        status.jobs_left_out > 0 ? " is not among the jobs shown." : " is not known to this service."),
      make("p", {}, make("a", {href: "#"}, "All jobs")))]]);
  } else {
    document.title = `ddprun: ${count(status.jobs.length, "job")}`;
    show([["jobs", [status.jobs, status.jobs_left_out], jobList]]);
  }
}

// --- the connection --------------------------------------------------------------------------------

let source = null; // null: there is no connection
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
}

// A hidden page has no connection: a browser opens only 6 at once to a service.
function connect() {
  if (source || document.hidden) return;
  const opened = new EventSource("events");
  source = opened;
  opened.onmessage = (event) => {
    status = JSON.parse(event.data);
    isRedirected = false;
    say("live", false);
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
  error.textContent = "";
  try {
    const answer = await fetch("token", {method: "POST",
      body: new URLSearchParams({token: text.value.trim()})});
    if (!answer.ok) {
      error.textContent = await answer.text();
      return;
    }
  } catch {
    error.textContent = "The service does not answer.";
    return;
  }
  text.value = "";
  connect();
});

window.addEventListener("hashchange", () => {
  render();
  window.scrollTo(0, 0);
});
connect();
