// The buttons of a job: stop, restart, stacks. Only those see them who may press them. Also the
// exchange of a token for a cookie, which scripts cannot read.

import {make} from "./elements.js";

const ORDERS = {
  stop: {text: "Stop", question: "End this job on all nodes?", yes: "End it"},
  restart: {text: "Restart", yes: "Start them again",
    question: "End all workers and start them again? This uses no restart."},
  stacks: {text: "Show stacks"}, // halts workers for a moment, so it is not for readers
};

let rights = {}; // what the server of the page said last

// Asks the server what this browser may do, and returns that.
export async function learnRights() {
  try {
    const answer = await fetch("rights");
    rights = answer.ok ? await answer.json() : {};
  } catch {
    rights = {};
  }
  return rights;
}

// Returns what decides which buttons there are.
export const buttonsOf = (job) => [job.phase === "ended", rights.acts, rights.takes_token];

export const isDashboard = () => Boolean(rights.is_dashboard);
export const mayAct = () => Boolean(rights.acts);
// Why this browser may not read what ranks write; empty: it may.
export const whyNoOutput = () => rights.why_no_output
  ?? "the service has not said yet whether this browser may read it";

// Gives a token to the server. Returns why it was refused; empty: it was not.
export async function giveToken(token) {
  try {
    const answer = await fetch("token", {method: "POST", body: new URLSearchParams({token})});
    return answer.ok ? "" : await answer.text();
  } catch {
    return "The service does not answer.";
  }
}

// Gives the token of the address that `ddprun dashboard` prints. It is removed from the address.
export async function giveTokenOfAddress() {
  const match = /^#token=([0-9a-f]{64})$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", "#");
  await giveToken(match[1]);
}

const waited = (ms) => ms === undefined ? "" : ` for ${(ms / 1000).toFixed(1)} s`;

// Returns the text of what agents send of their workers' stacks: lines of JSON.
function stacksText(lines) {
  const texts = lines.split("\n").filter((line) => line).map((line) => {
    const one = JSON.parse(line);
    if (one.missing || one.notice) return one.missing ?? one.notice;
    if (!one.frames) return one.dropped_bytes ? "a node has more stacks than it sends" : "";
    const does = one.call ? `in ${one.call}${waited(one.waited_ms)}` : one.doing ?? "";
    const frames = one.frames.length > 0 ? one.frames
      : [one.is_stopped ? "no stack: it is stopped" : "no stack: gdb or py-spy is needed there"];
    return [`rank ${one.rank} (pid ${one.pid} on ${one.host}): ${does}`,
      ...frames.map((frame) => `    ${frame}`)].join("\n");
  });
  return texts.filter((text) => text).join("\n\n") || "The job has no stacks now.";
}

// Gives an order for the job. rank: stacks are those of this rank only. Returns the answer: stacks
// as a text, or one line.
export async function give(order, id, generation, rank) {
  const answer = await fetch("act", {method: "POST", body: new URLSearchParams(
    {order, job: id, generation, ...(rank === undefined ? {} : {rank})})});
  const text = await answer.text();
  const isLines = answer.headers.get("Content-Type").includes("ndjson");
  return {ok: answer.ok, text: isLines ? stacksText(text) : text.trim(), isLines,
    isForbidden: answer.status === 403};
}

function tokenForm(changed) {
  const field = make("input", {id: "write-token", type: "password", autocomplete: "off",
    spellcheck: "false", required: ""});
  const error = make("p", {class: "bad", role: "alert"});
  const form = make("form", {}, make("label", {for: "write-token"}, "The token of ",
    make("code", {}, "ddp-rendezvous --rdzv-key-file FILE --print-write-token"), ":"), field,
  make("button", {}, "Show the buttons"), error);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = await giveToken(field.value.trim());
    if (error.textContent) return;
    if (!(await learnRights()).acts) error.textContent = "This token only reads.";
    changed();
  });
  return make("details", {}, make("summary", {}, "Stop or restart this job"), form);
}

// Returns the section with the buttons of a job; null: this browser may press none. generation():
// the one that the page shows. changed(): called when there are other buttons.
export function actionsOf(job, generation, changed) {
  if (job.phase === "ended" || !(rights.acts || rights.takes_token)) return null;
  const section = make("section", {id: "actions"}, make("h2", {}, "Actions"));
  if (!rights.acts) {
    section.append(tokenForm(changed));
    return section;
  }
  const buttons = make("p", {});
  const said = make("p", {id: "said", role: "status"});
  const stacks = make("pre", {id: "stacks", tabindex: "0", hidden: ""});
  const button = (id, text, pressed) => {
    const one = make("button", {id, type: "button"}, text);
    one.addEventListener("click", pressed);
    return one;
  };
  const showButtons = () => buttons.replaceChildren(...Object.entries(ORDERS).flatMap(
    ([order, {text, question}]) => [
      button(`do-${order}`, text, () => question ? ask(order) : press(order)), " "]));
  const ask = (order) => {
    const {question, yes} = ORDERS[order];
    const asked = generation(); // the person decides for this one
    buttons.replaceChildren(question, " ", button("yes", yes, () => press(order, asked)), " ",
      button("no", "Cancel", showButtons));
    buttons.querySelector("#no").focus();
  };
  const press = async (order, asked = generation()) => {
    showButtons();
    for (const one of buttons.querySelectorAll("button")) one.disabled = true;
    said.textContent = "asking";
    said.classList.remove("bad");
    stacks.hidden = true;
    try {
      const {ok, text, isLines, isForbidden} = await give(order, job.id, asked);
      said.textContent = isLines ? "" : text || "Nothing came.";
      said.classList.toggle("bad", !ok);
      stacks.textContent = isLines ? text : "";
      stacks.hidden = !isLines;
      if (isForbidden) {
        await learnRights();
        changed();
      }
    } catch {
      said.textContent = "No answer came. Look at the events before you try again.";
      said.classList.add("bad");
    }
    showButtons();
  };
  showButtons();
  section.append(buttons, said, stacks);
  return section;
}
