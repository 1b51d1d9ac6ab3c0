"""Tests what the package writes into the worker page, and that the launcher reads it."""
import json
import os
import struct
import sys
import time

import frame

import ddprun

PAGE_BYTES = 266240
FIELDS = ("reports", "step", "activity", "calls", "long_waits")


class Page(frame.Test):
    """A page of the test's own, in the place of the launcher's."""

    def written_by(self, program: str, version: int = 2) -> dict[str, int]:
        """Runs the program with a page. Returns what is in its fields."""
        file = os.memfd_create("pages")
        self.addCleanup(os.close, file)
        os.ftruncate(file, 2 * PAGE_BYTES)
        os.pwrite(file, struct.pack("<II", 0x50524444, version), PAGE_BYTES)
        frame.run([sys.executable, "-c", "import os, ddprun\n" + program], env=frame.environment(
            RANK="1", WORLD_SIZE="2",
            DDPRUN_WORKER_PAGE=f"{PAGE_BYTES}@/proc/{os.getpid()}/fd/{file}"))
        self.assertEqual(os.pread(file, PAGE_BYTES, 0), bytes(PAGE_BYTES), "of another worker")
        self.page = os.pread(file, 4096, PAGE_BYTES)
        return dict(zip(FIELDS, struct.unpack_from("<QqQQQ", self.page, 8)))

    def check(self, program: str, version: int = 2, **expected: int) -> None:
        self.assertEqual(self.written_by(program, version), dict.fromkeys(FIELDS, 0) | expected)

    def test_a_step_is_written_with_the_number_of_reports(self):
        self.check("for step in (7, 8, -3): ddprun.report_progress(step)", reports=3, step=-3)

    def test_the_first_step_is_kept_with_its_time(self):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.check("for step in (7, 8): ddprun.report_progress(step)", reports=2, step=8)
        when, step = struct.unpack_from("<Qq", self.page, 72)
        self.assertEqual(step, 7)
        self.assertTrue(before < when < time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def test_the_total_of_steps_is_kept_until_another_one_is_told(self):
        for calls, total in [("1", 0), ("1, None", 0), ("1, total=0", 0), ("1, -1", 0),
                             ("1, 2**63 - 1", 2**63 - 1)]:
            self.check(f"ddprun.report_progress({calls})", reports=1, step=1)
            self.assertEqual(struct.unpack_from("<q", self.page, 2152), (total,), calls)
        self.check("ddprun.report_progress(1, 900); ddprun.report_progress(2)", reports=2, step=2)
        self.assertEqual(struct.unpack_from("<q", self.page, 2152), (900,))

    def test_only_a_checkpoint_that_is_written_is_waited_for(self):
        self.check("""
from ddprun._progress import checkpoint_wait
try:
    with checkpoint_wait():
        raise OSError
except OSError:
    pass
""")
        self.assertEqual(struct.unpack_from("<Q", self.page, 88), (0,))
        self.assertEqual(struct.unpack_from("<4Q", self.page, 2184), (0, 0, 0, 0))
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.check("""
from ddprun._progress import checkpoint_wait
for _ in range(33):
    with checkpoint_wait():
        pass
""")
        waited, = struct.unpack_from("<Q", self.page, 88)
        self.assertTrue(0 < waited < 60e9, waited)
        self.assertEqual(struct.unpack_from("<Q", self.page, 2184), (33,))
        marks = sorted(struct.iter_unpack("<3Q", self.page[2192:2960]))
        self.assertEqual([number for number, _, _ in marks], list(range(2, 34)))
        self.assertEqual(struct.unpack_from("<Q", self.page, 2192), (33,))
        times = [before, *(at for _, *span in marks for at in span),
                 time.clock_gettime_ns(time.CLOCK_BOOTTIME)]
        self.assertEqual(times, sorted(times))

    def test_activity_grows(self):
        self.check("for _ in range(5): ddprun.report_activity()", activity=5)

    def test_long_waits_may_be_nested_and_end_with_activity(self):
        self.check("""
with ddprun.long_wait():
    with ddprun.long_wait():
        os._exit(0)""", long_waits=2)
        self.check("""
try:
    with ddprun.long_wait(), ddprun.long_wait():
        raise KeyError
except KeyError: pass""", long_waits=0, activity=2)

    def test_the_child_of_a_fork_reports_nothing(self):
        self.check("""
ddprun.report_progress(1)
with ddprun.long_wait():
    if os.fork() == 0:
        ddprun.report_progress(2)
        ddprun.report_activity()
    else:
        os.wait()""", reports=1, step=1, activity=1)

    def test_a_child_of_multiprocessing_reports_nothing(self):
        self.check("""
import multiprocessing
for method in ("spawn", "forkserver"):
    for report in (ddprun.report_activity, ddprun.long_wait):
        child = multiprocessing.get_context(method).Process(target=report)
        child.start()
        child.join()
        assert child.exitcode == 0
ddprun.report_progress(1)""", reports=1, step=1)

    def test_a_page_of_another_version_is_left_alone(self):
        self.check("ddprun.report_progress(1)", version=3)

    def test_a_step_that_is_no_integer_is_an_error_also_without_a_launcher(self):
        said = frame.run([sys.executable, "-c", "import ddprun; ddprun.report_progress(1.5)"],
                         code=1)
        self.assertIn("TypeError: 'float' object cannot be interpreted as an integer", said)

    def test_a_step_has_64_bits(self):
        self.check("for step in (2**63 - 1, -2**63): ddprun.report_progress(step)", reports=2,
                   step=-2**63)
        for step in (2**63, -2**63 - 1):
            with self.assertRaisesRegex(ValueError, f"^report_progress: invalid step {step} "):
                ddprun.report_progress(step)
            with self.assertRaisesRegex(ValueError, f"^report_progress: invalid step {step} "):
                ddprun.report_progress(1, step)
        with self.assertRaises(TypeError):
            ddprun.report_progress(1, total=1e6)


class Launcher(frame.Test):
    def test_status_shows_the_step(self):
        script = self.script("""
            import ddprun
            ddprun.report_progress(56 + ddprun.Environment.current().rank, 1000)
            print("reported")
            open(f"go.{ddprun.Environment.current().rank}").read()
        """)
        gates = [self.folder / f"go.{rank}" for rank in range(2)]
        for gate in gates:
            os.mkfifo(gate)
        job = self.job(["--nproc-per-node=2", script])
        job.read_until("reported$", 2)
        status = json.loads(frame.run([frame.DDPRUN, "status", "--json", str(job.process.pid)]))
        self.assertEqual([worker["step"] for worker in status["agents"][0]["workers"]], [56, 57])
        self.assertEqual([rank["total_steps"] for rank in status["agents"][0]["ranks"]],
                         [1000, 1000])
        self.assertIn("  step 57 of 1,000",
                      frame.run([frame.DDPRUN, "status", str(job.process.pid)]))
        for gate in gates:
            gate.write_text("")
        job.end()

    def test_a_rank_that_hangs_is_named_and_one_that_waits_long_is_not(self):
        """Rank 1 stops after step 5. Rank 0 waits for it, and says so."""
        script = self.script("""
            import signal, ddprun
            ddprun.report_progress(5)
            if ddprun.Environment.current().rank == 0:
                with ddprun.long_wait():
                    signal.pause()
            signal.pause()
        """)
        said = self.job(["--nproc-per-node=2", "--hang-timeout=1", script]).end(71)
        self.assertRegex(said, r"first failure: rank 1 \(.*\) hangs")


frame.main()
