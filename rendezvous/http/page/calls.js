// The last calls of a rank as a text, from what its agent sends: lines of JSON with the flight
// record (control.md). Texts in it may be those of a program, and of another version.

import {bytes, count, duration} from "./numbers.js";

const MOST_CALLS = 20;
const MOST_IN_A_CELL = 300; // characters
const HEADINGS = ["number", "group", "collective", "call", "size", "dtype", "op", "rank", "begun",
  "state"];
const NO_CALLS = "no call was recorded: programs of ddprun's library record theirs, and Python " +
  "programs that import ddprun";

const isObject = (value) => value !== null && typeof value === "object";
const listOf = (value) => Array.isArray(value) ? value : [];
const cellOf = (value) => (isObject(value) ? "?" : String(value ?? ""))
  .replace(/[\u0000-\u001f\u007f]/g, "?").slice(0, MOST_IN_A_CELL);

function span(from, to) {
  const ns = Math.max(0, to - from);
  if (Number.isNaN(ns)) return "?";
  if (ns >= 1e9) return duration(ns / 1e6);
  const [size, unit] = ns < 1e3 ? [1, "ns"] : ns < 1e6 ? [1e3, "µs"] : [1e6, "ms"];
  return `${(ns / size).toFixed(ns < 1e3 ? 0 : 1)} ${unit}`;
}

function rowOf(flight, call) {
  const group = listOf(flight.groups).find((one) => one?.id === call.group);
  const origin = flight.origins?.[call.origin];
  const state = call.ended_ns
    ? `${call.failed ? "failed after" : "took"} ${span(call.begun_ns, call.ended_ns)}`
    : "in progress";
  return [call.number, call.group ? group?.name || call.group : "world",
    ["send", "recv"].includes(call.call) ? "" : call.collective, call.call,
    ["barrier", "monitored_barrier"].includes(call.call) ? "" : bytes(call.bytes), call.dtype,
    call.op, call.peer, `${span(call.begun_ns, flight.boot_ns)} ago`,
    origin ? `${state}, from ${origin}` : state].map(cellOf);
}

// Returns the rows with columns of equal width. A column that has only its heading is left out.
function tableText([headings, ...rows]) {
  const used = headings.map((_, i) => i).filter((i) => rows.some((row) => row[i]));
  const widths = used.map((i) => Math.max(...[headings, ...rows].map((row) => row[i].length)));
  return [headings, ...rows].map((row) => `  ${
    used.map((i, place) => row[i].padEnd(widths[place])).join("  ")}`.trimEnd()).join("\n");
}

function textOf(flight, calls) {
  const host = flight.host ? ` on ${cellOf(flight.host)}` : "";
  const pid = flight.pid > 0 ? `, pid ${flight.pid}` : "";
  const step = flight.step === undefined ? "" : `, step ${cellOf(flight.step)}`;
  const state = `${cellOf(flight.state)}${flight.stopped ? ", stopped" : ""}${step}`;
  const place = `local rank ${cellOf(flight.local_rank)}${host}${pid}`;
  const head = `rank ${cellOf(flight.rank)} (${place}): ${state}`;
  if (calls.length === 0) return `${head}; ${NO_CALLS}`;
  const shown = calls.slice(-MOST_CALLS);
  const all = flight.call_count ?? calls.length;
  const last = shown.length < all ? `, the last ${shown.length}` : "";
  const table = tableText([HEADINGS, ...shown.map((call) => rowOf(flight, call))]);
  return `${head}; ${count(all, "call")}${last}:\n${table}`;
}

export function callsText(lines) {
  const notices = [];
  const calls = [];
  let flight = null;
  for (const line of lines.split("\n")) {
    let json = null;
    try {
      json = JSON.parse(line);
    } catch {
      continue; // a part of the answer, or of another version
    }
    if (json?.notice) notices.push(cellOf(json.notice));
    if (json?.dropped_bytes) notices.push("calls are missing: there are more than the node sends");
    const part = json?.flight;
    if (!isObject(part)) continue;
    if (!part.goes_on) flight = part;
    for (const call of listOf(part.calls)) if (isObject(call)) calls.push(call);
  }
  const known = flight ? textOf(flight, calls) : "Nothing is known of its calls now.";
  return [known, ...notices].join("\n");
}
