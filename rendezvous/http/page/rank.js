// What a rank has written, its last calls, its stack, and the generations that it failed in. Output
// comes as events of its own, only while this page shows the rank. Its calls are asked for once.
// Every text becomes textContent.

import {give, isDashboard, learnRights, mayAct, whyNoOutput} from "./actions.js";
import {callsText} from "./calls.js";
import {make} from "./elements.js";

export const TRY_AGAIN_MS = 10000; // after a stream was refused
const MOST_LINES = 200;
const MOST_CHARACTERS = 65536;

// Colours and titles for a terminal, and other control characters but those of lines.
const ESCAPES = new RegExp("\\u001b\\[[0-?]*[ -/]*[@-~]|" +
  "\\u001b\\][^\\u0007\\u001b\\n]*(?:\\u0007|\\u001b\\\\)|\\u001b[ -/]+[0-~]|" +
  "[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f]", "g");

// Returns the lines as a terminal would show them: a later part of a line replaces an earlier one.
export const plainText = (text) => text.replace(ESCAPES, "").split("\n")
  .map((line) => line.replace(/\r+$/, ""))
  .map((line) => line.slice(line.lastIndexOf("\r") + 1)).join("\n");

// Returns the last lines of the text, with their end.
function lastLines(text) {
  const kept = text.slice(-MOST_CHARACTERS).split("\n");
  return kept.slice(-MOST_LINES - 1).join("\n");
}

// Returns why the stream of this path was refused, and whether that may change by itself.
// EventSource does not say it.
async function whyRefused(path) {
  try {
    const answer = await fetch(path);
    if (!answer.ok) return [(await answer.text()).trim(), answer.status >= 500];
    await answer.body.cancel();
  } catch {
    // It does not answer.
  }
  return ["it was refused", true];
}

// Follow: shows the output that a stream sends, in an element.
class Follow {
  // over(): what the note says at the end.
  constructor(path, pre, note, over) {
    note.textContent = "connecting";
    this.source = new EventSource(path);
    let text = "";
    const show = () => {
      const isAtEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 8;
      pre.textContent = plainText(text);
      if (isAtEnd) pre.scrollTop = pre.scrollHeight;
    };
    this.source.onopen = () => {
      text = "";
      show();
      note.textContent = "It has written nothing yet.";
    };
    this.source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.left_out) text += `… ${news.left_out} bytes are left out …\n`;
      text = lastLines(text + news.text);
      note.textContent = "";
      show();
    };
    this.source.addEventListener("end", (event) => {
      this.close();
      const {why} = JSON.parse(event.data);
      this.isEnded = true;
      note.textContent = why ? `Its output cannot be shown: ${why}` : over();
    });
    this.source.onerror = async () => {
      note.textContent = "not connected";
      if (this.source.readyState !== EventSource.CLOSED) return;
      this.isEnded = true;
      const [why, isForNow] = await whyRefused(path);
      if (this.isClosed) return;
      note.textContent = isForNow ? `${why}; trying again` : why;
      if (isForNow) setTimeout(() => { this.isDueAgain = true; }, TRY_AGAIN_MS);
    };
  }

  close() {
    this.isClosed = true;
    this.source.close();
  }
}

// Asks for the last calls of the rank of this section, and shows them.
async function showCalls(section) {
  const {job, rank} = section.dataset;
  const button = section.querySelector("#flight-again");
  const note = section.querySelector("#rank-flight-note");
  if (button.disabled) return;
  button.disabled = true;
  note.textContent = "asking";
  let why = "No answer came.";
  let calls = "";
  try {
    const answer = await fetch(`flight/${rank}?${new URLSearchParams({job})}`);
    const text = await answer.text();
    why = answer.ok ? "The answer cannot be read." : text.trim();
    if (answer.ok) calls = callsText(text);
  } catch {
    // `why` says what failed.
  }
  note.textContent = calls ? "" : why;
  section.querySelector("#rank-flight").textContent = calls;
  button.disabled = false;
}

let followed = null; // {section, state, output}: what is open now

// Opens the output of this section of rankOf(), and closes that of another one. null: closes it.
// state: of the job. A stream that the service has ended or refused is opened again in another state:
// there may be a new run of the job. One that was refused with 5xx is opened again after 10 s, too.
// isOver: the job has ended, so no stream is opened. An open one still has the last lines.
export function follow(section, state, isOver) {
  const isSame = followed?.section === section && followed.state === state;
  const isOld = followed?.output.isEnded
    && (followed.state !== state || followed.output.isDueAgain);
  if (followed?.section === section && !isOld) return;
  followed?.output.close();
  followed = null;
  if (!section?.dataset.job) return;
  if (isOver) {
    section.querySelector("#rank-output-note").textContent = "The job has ended.";
    return;
  }
  const {job, rank} = section.dataset;
  const output = new Follow(`output/${rank}?${new URLSearchParams({job})}`,
    section.querySelector("#rank-output"), section.querySelector("#rank-output-note"),
    section.over);
  followed = {section, state, output};
  if (!isSame) showCalls(section);
}

const quoted = (text) => /^[\w.:/@%+=,-]+$/.test(text) ? text
  : `'${text.replaceAll("'", "'\\''")}'`;

// Returns the commands that show what this page does not, for the page of a service.
export function commandsOf(id, rank, host) {
  const last = quoted(id);
  const why = whyNoOutput();
  const lines = ["logs -f", "flight", "stacks"].map(
    (command) => `ddprun ${command} --rank ${rank} -- ${last}`);
  const place = quoted(location.host);
  const what = why ? "Its output and its calls" : "More of its output and its calls";
  return make("section", {id: "rank-elsewhere"},
    why ? make("p", {}, `Its output and its calls are not shown here: ${why}.`) : null,
    make("p", {}, what, mayAct() ? "" : ", and its stack",
      `: in a terminal on ${host ?? "its host"}, by the user of the job:`),
    make("pre", {tabindex: "0", id: "rank-commands"}, lines.join("\n")),
    make("p", {}, "On another host, add ", make("code", {}, `--rdzv-endpoint=${place}`),
      ". A page with the same: ",
      make("code", {}, `ddprun dashboard --rdzv-endpoint=${place} -- ${last}`)));
}

// Returns the button that shows the stack of the rank.
function stackOf(id, rank, generation, changed) {
  const pre = make("pre", {id: "rank-stack", tabindex: "0", hidden: ""});
  const note = make("span", {id: "rank-stack-note", role: "status"});
  const button = make("button", {id: "show-stack", type: "button"}, "Show its stack");
  button.addEventListener("click", async () => {
    button.disabled = true;
    note.textContent = " asking";
    try {
      const {text, isLines, isForbidden} = await give("stacks", id, generation(), rank);
      note.textContent = isLines ? "" : ` ${text}`;
      pre.textContent = isLines ? plainText(text) : "";
      pre.hidden = !isLines;
      if (isForbidden) {
        await learnRights();
        changed();
      }
    } catch {
      note.textContent = " No answer came.";
    }
    button.disabled = false;
  });
  return make("div", {}, make("p", {}, button, note), pre);
}

// Returns the section with what the rank writes and does. host(): its host; undefined if that is not
// known. generation(): the one that the page shows. changed(): called when there are other buttons.
export function rankOf(id, rank, host, generation, changed) {
  const section = make("section", {id: "rank-details"});
  if (isDashboard() || !whyNoOutput()) {
    const part = (what, title) => [make("h3", {id: `rank-${what}-title`}, title),
      make("p", {class: "dim", id: `rank-${what}-note`, role: "status"}),
      make("pre", {id: `rank-${what}`, tabindex: "0", "aria-labelledby": `rank-${what}-title`})];
    section.dataset.job = id;
    section.dataset.rank = rank;
    section.over = () => isDashboard()
      ? `Nothing more comes here. In a terminal on ${host() ?? "its host"}: ` +
        `ddprun logs -f --rank ${rank} -- ${quoted(id)}` : "The job has ended.";
    const again = make("button", {id: "flight-again", type: "button"}, "Show its calls again");
    again.addEventListener("click", () => showCalls(section));
    section.append(...part("output", "Output"), ...part("flight", "Last calls"), again);
  }
  if (mayAct()) section.append(stackOf(id, rank, generation, changed));
  return section;
}

// The parts that a rank may have in a failure: the list that names it, and words.
const PARTS = {
  first: "it failed first", blamed: "it is blamed",
  failed_in_the_same_way: "it failed in the same way", victims: "it ended because of another rank",
};

// Returns for each failed generation, the newest first: its number, its reason, and what the rank
// had to do with it.
export function failuresOfRank(job, rank) {
  return [...job.failures].reverse().map((failure) => {
    const own = Object.entries(PARTS).flatMap(([part, words]) => (failure[part] ?? [])
      .filter((end) => end.rank === rank)
      .map((end) => [`${words}: ${end.what}`, end.message, end.hint, ...(end.frames ?? []),
        ...(end.stderr ?? [])].filter((text) => text).join("\n")));
    return {generation: failure.generation, what: failure.what,
      own: own.length > 0 ? plainText(own.join("\n")) : "nothing is known of this rank"};
  });
}
