"""Tests `ddprun trace`.

- The file has the "Trace Event Format" (the public document of that name; Perfetto reads it).
- Records of hosts whose clocks differ are aligned: each collective ends on all ranks within the
  bound that the trace states.
- A running job, and a job that was killed; what cannot be traced.

argv: the folder of the programs.
"""
import collections
import gzip
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAMS = pathlib.Path(sys.argv.pop(1))
US = 1000  # nanoseconds
MS = 1000 * US


def number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_format(trace: dict) -> list[dict]:
    """Checks the trace against the format. Returns its events without the metadata."""
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    newest = collections.defaultdict(float)  # by track
    begun = collections.Counter()  # by track: B without E
    names = set()
    events = []
    for event in trace["traceEvents"]:
        phase, track = event["ph"], (event["pid"], event["tid"])
        assert all(type(one) is int and one >= 0 for one in track), event
        assert isinstance(event["name"], str) and event["name"], event
        assert isinstance(event.get("args", {}), dict), event
        if phase == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index"), event
            [value] = event["args"].values()
            assert isinstance(value, int if "sort" in event["name"] else str), event
            names.add((event["name"], event["pid"]))
            continue
        events.append(event)
        assert number(event["ts"]) and event["ts"] >= newest[track], event
        newest[track] = event["ts"]
        assert isinstance(event["cat"], str), event
        assert phase in ("X", "B", "E", "i"), event
        if phase == "X":
            assert number(event["dur"]) and event["dur"] >= 0, event
        elif phase == "i":
            assert event["s"] in ("g", "p", "t"), event
        else:
            begun[track] += 1 if phase == "B" else -1
            assert begun[track] >= 0, event
    assert not +begun, begun
    for pid in {event["pid"] for event in events}:
        assert ("process_name", pid) in names and ("thread_name", pid) in names, pid
    return events


def record(rank: int, host: str, calls: list[tuple[int, int]], boot_s: int, ahead_ns: int) -> dict:
    """Returns the record of a rank whose calls began and ended at these times since 1970. Its host
    was booted boot_s after 1970, and its wall clock is ahead."""
    boot = boot_s * 1000 * MS
    read = max(end for _, end in calls) + 50 * MS
    return {"rank": rank, "host": host, "lives": True, "state": "running", "generation": 0,
            "boot_ns": read - boot, "wall_ns": read + ahead_ns, "groups": [],
            "call_count": len(calls),
            "calls": [{"number": n, "collective": n, "call": "all_reduce", "bytes": 4096,
                       "begun_ns": begin - boot, "ended_ns": end - boot}
                      for n, (begin, end) in enumerate(calls, 1)]}


class TraceTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = os.environ | {"XDG_RUNTIME_DIR": str(self.folder)}

    def ddprun(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([PROGRAMS / "ddprun", *arguments], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True, timeout=60,
                              check=False)

    def trace(self, *arguments: str) -> dict:
        """Returns the trace, of which the plain file and the compressed one are equal."""
        for name in ("trace.json", "trace.json.gz"):
            done = self.ddprun("trace", "-o", name, *arguments)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        plain = (self.folder / "trace.json").read_text()
        self.assertEqual(json.loads(gzip.open(self.folder / "trace.json.gz").read()).keys(),
                         json.loads(plain).keys())
        return json.loads(plain)

    def test_collectives_of_hosts_whose_clocks_differ_end_within_the_bound(self):
        rng = random.Random(5)
        begun = 1_795_000_000_000 * MS
        calls = [[], []]
        for n in range(200):
            at = begun + n * 20 * MS
            begins = [at + rng.randrange(5 * MS) for _ in calls]
            for rank, begin in enumerate(begins):
                calls[rank].append((begin, max(begins) + rng.randrange(200 * US)))
        for rank, (host, boot_s, ahead) in enumerate([("a", 1_700_000_000, 0),
                                                      ("b", 1_790_000_000, 7_300 * MS)]):
            (self.folder / f"{host}.json").write_text(
                json.dumps([record(rank, host, calls[rank], boot_s, ahead)]))
        trace = self.trace("a.json", "b.json")
        events = check_format(trace)
        bound = trace["otherData"]["clocks"]["b"]["bound_us"]
        self.assertEqual(trace["otherData"]["clocks"]["b"]["collectives"], 200)
        self.assertLess(bound, 1000)
        by_number = collections.defaultdict(list)
        for event in events:
            if event["name"] == "all_reduce":
                by_number[event["args"]["collective"]].append(event)
        self.assertEqual(len(by_number), 200)
        start = trace["otherData"]["start_unix_ns"]
        for n, [one, other] in by_number.items():
            truth = (calls[0][n - 1][1] - calls[1][n - 1][1]) / US
            seen = one["ts"] + one["dur"] - other["ts"] - other["dur"]
            self.assertLessEqual(abs(seen - truth), bound + 0.01, n)
            for first, second in ((one, other), (other, one)):  # none ends before all have begun
                self.assertLessEqual(first["ts"], second["ts"] + second["dur"] + bound + 0.01, n)
            self.assertAlmostEqual(one["ts"], (calls[0][n - 1][0] - start) / US, delta=0.01)

    def start_job(self, program: str, *arguments: str) -> subprocess.Popen:
        job = subprocess.Popen(
            [PROGRAMS / "ddprun", "--nproc-per-node=2", "--rdzv-id=train", "--log-dir=logs",
             PROGRAMS / program, *arguments], cwd=self.folder, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job

    def test_a_running_job_and_one_that_was_killed(self):
        job = self.start_job("hang_worker", "0:wait,1:wait")
        deadline = time.monotonic() + 60
        names = []
        while names.count("all_reduce") < 18:
            self.assertLess(time.monotonic(), deadline, names)
            done = self.ddprun("trace", "-o", "early.json", "train")
            if done.returncode == 0:
                events = check_format(json.loads((self.folder / "early.json").read_text()))
                names = [event["name"] for event in events]
        self.assertEqual(names.count("generation 0"), 2)
        self.assertEqual(sum(e.get("args", {}).get("in_progress", False) for e in events), 2)
        self.assertTrue(any("generation 0 with 2 workers" in name for name in names), names)

        flight = json.loads(self.ddprun("flight", "--json", "train").stdout)
        os.kill(flight["ranks"][1]["pid"], signal.SIGKILL)
        self.assertEqual(job.wait(60), 128 + signal.SIGKILL)
        [file] = self.folder.glob("logs/**/flight.json")
        names = [event["name"] for event in check_format(self.trace(str(file)))]
        self.assertEqual(names.count("all_reduce"), 18)
        self.assertTrue(any("SIGKILL" in name for name in names), names)

    def checkpoints_of(self, trace: dict) -> dict[int, list[dict]]:
        """Checks the rows of checkpoints in a trace. Returns their events by rank."""
        events = check_format(trace)
        rows = {(event["pid"], event["tid"]) for event in trace["traceEvents"]
                if event["ph"] == "M" and event["args"].get("name") == "checkpoints"}
        read = {event["pid"]: event["ts"] + event["dur"] for event in events
                if event["name"] == "generation 0"}
        waits = collections.defaultdict(list)
        for event in events:
            if event["name"] == "checkpoint":
                self.assertIn((event["pid"], event["tid"]), rows)
                of_rank = waits[event["pid"]]
                if of_rank:
                    self.assertGreaterEqual(event["ts"], of_rank[-1]["ts"] + of_rank[-1]["dur"])
                self.assertGreater(event["dur"], 0)
                self.assertLessEqual(event["ts"] + event["dur"], read[event["pid"]])
                of_rank.append(event)
        return waits

    def test_a_training_shows_its_checkpoints_also_after_it_was_killed(self):
        job = self.start_job("train_digits", "--epochs=1000000", "--checkpoint-every=10",
                             "--checkpoint-dir=run")
        deadline = time.monotonic() + 100
        waits = {}
        while len(waits) < 2 or min(map(len, waits.values())) < 4:
            self.assertIsNone(job.poll())
            self.assertLess(time.monotonic(), deadline, waits)
            done = self.ddprun("trace", "-o", "live.json", "train")
            if done.returncode == 0:
                waits = self.checkpoints_of(json.loads((self.folder / "live.json").read_text()))
        flight = json.loads(self.ddprun("flight", "--json", "train").stdout)
        os.kill(flight["ranks"][1]["pid"], signal.SIGKILL)
        self.assertEqual(job.wait(60), 128 + signal.SIGKILL)
        [file] = self.folder.glob("logs/**/flight.json")
        after = self.checkpoints_of(self.trace(str(file)))
        self.assertGreaterEqual(min(len(after[rank]) for rank in range(2)), 4)

    def test_what_cannot_be_traced_is_said_in_one_line(self):
        (self.folder / "none.json").write_text("[]")
        (self.folder / "one.json").write_text(
            json.dumps([record(0, "a", [(2000 * MS, 3000 * MS)], 1, 0)]))
        for arguments, code, words in (
            (["-o", "t.json", "none.json"], 73, "no flight records in none.json"),
            (["-o", "/nowhere/t.json", "one.json"], 73,
             "-o: write /nowhere/t.json: No such file or directory"),
            (["-o", "/nowhere/t.json.gz", "one.json"], 73,
             "-o: write /nowhere/t.json.gz: No such file or directory"),
        ):
            done = self.ddprun("trace", *arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (code, "", f"ddprun: error: {words}\n"))


if __name__ == "__main__":
    unittest.main()
