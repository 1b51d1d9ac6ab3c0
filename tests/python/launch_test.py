"""Tests ddprun.launch: results, failures and interrupts of real jobs."""
import contextlib
import io
import os
import pathlib
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock

import frame

import ddprun
from ddprun import _launch

# A module of functions, which every python can import.
FUNCTIONS = """
    import os, signal, sys, ddprun

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def place(word):
        here = ddprun.Environment.current()
        print(f"{word} from {here.rank}", flush=True)
        return here.rank, here.world_size, word

    def fail(how, after=0):
        rank = ddprun.Environment.current().rank
        if rank == 1 and ddprun.restart_count() < 1 + after:
            if how == "raise":
                try:
                    {}["key"]
                except KeyError as error:
                    raise ValueError("no data") from error
            if how == "odd":
                raise Odd(1, 2)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "leave":
                sys.exit(0)
            if how == "lambda":
                return lambda: 1
            if how == "talk":
                signal.signal(signal.SIGINT, lambda *_: None)
                print("pausing", flush=True)
                signal.pause()
                print("x" * 300000, flush=True)
                print("goodbye", flush=True)
        waits = how not in ("leave", "lambda", "talk")
        if rank == 0 and waits and ddprun.restart_count() < 1 + after:
            print("pausing", flush=True)
            signal.pause()  # it ends with the other one
        return ddprun.generation()
"""


class Launch(frame.Test):
    def setUp(self):
        super().setUp()
        self.script(FUNCTIONS, "launch_test_functions.py")
        environment = unittest.mock.patch.dict(
            os.environ, {"PATH": frame.environment()["PATH"], "OMP_NUM_THREADS": "1"})
        environment.start()
        self.addCleanup(environment.stop)
        sys.path.insert(0, str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))
        self.addCleanup(sys.modules.pop, "launch_test_functions")
        import launch_test_functions
        self.functions = launch_test_functions
        # A launch must leave no file.
        temporary = unittest.mock.patch.object(tempfile, "tempdir", str(self.folder / "tmp"))
        temporary.start()
        self.addCleanup(temporary.stop)
        (self.folder / "tmp").mkdir()
        self.addCleanup(lambda: self.assertEqual(os.listdir(self.folder / "tmp"), []))

    def run_failing(self, how, after=0, **options):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            results = ddprun.launch(self.functions.fail, how, after, nproc_per_node=2,
                                    shutdown_grace=5, **options)
        return results, output.getvalue()

    def test_results_come_by_rank_and_output_goes_to_sys_stdout(self):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            results = ddprun.launch(self.functions.place, "hello", nproc_per_node=3)
        self.assertEqual(results, [(0, 3, "hello"), (1, 3, "hello"), (2, 3, "hello")])
        self.assertEqual(sorted(output.getvalue().splitlines()),
                         [f"[rank {rank}] hello from {rank}" for rank in range(3)])

    def test_the_first_failure_is_raised_with_its_traceback(self):
        with self.assertRaises(ValueError) as caught:
            self.run_failing("raise")
        self.assertEqual(str(caught.exception), "no data")
        cause = caught.exception.__cause__
        self.assertIsInstance(cause, ddprun.RemoteTraceback)
        self.assertRegex(str(cause), r"(?s)^\n\"\"\"\nrank 1:\nTraceback .*KeyError: 'key'\n.*"
                         r"launch_test_functions.py.*ValueError: no data\n\"\"\"$")

    def test_an_exception_that_cannot_be_pickled_is_told_by_its_text(self):
        with self.assertRaisesRegex(RuntimeError, "^Odd: 1 and 2$"):
            self.run_failing("odd")

    def test_after_a_restart_the_results_are_those_of_the_last_generation(self):
        self.assertEqual(self.run_failing("raise", max_restarts=1)[0], [1, 1])
        with self.assertRaises(ValueError):
            self.run_failing("raise", after=1, max_restarts=1)

    def test_a_worker_that_is_killed_is_a_launch_error(self):
        with self.assertRaisesRegex(
                ddprun.LaunchError,
                r"^launch: rank 1 \(.*\) was killed by SIGKILL \(ddprun ended with exit code 137\)$"
        ) as caught:
            self.run_failing("kill")
        self.assertEqual(caught.exception.exit_code, 137)
        self.assertEqual(caught.exception.report["failed_generations"][0]["first"][0]["rank"], 1)

    def test_a_worker_that_leaves_with_0_has_no_result(self):
        self.assertEqual(self.run_failing("leave")[0], [0, None])

    def test_a_result_that_cannot_be_pickled_is_an_error(self):
        with unittest.mock.patch.dict(sys.modules, {"cloudpickle": None}):
            with self.assertRaisesRegex(
                    TypeError, "^launch: the result cannot be pickled: .*lambda"):
                self.run_failing("lambda")

    def test_bad_input_starts_nothing(self):
        with self.assertRaisesRegex(ValueError, "^launch: hosts is refused: results of other"):
            self.run_failing("raise", hosts="a,b")
        with self.assertRaisesRegex(ValueError, "^launch: nnodes is refused"):
            self.run_failing("raise", nnodes=2)
        with self.assertRaisesRegex(
                ddprun.LaunchError,
                r"^launch: the job did not start \(ddprun ended with exit code 2\)$"):
            self.run_failing("raise", bogus=1)
        with unittest.mock.patch.dict(sys.modules, {"cloudpickle": None}):
            with self.assertRaisesRegex(ValueError, r"cannot be sent \(pip install cloudpickle"):
                ddprun.launch(lambda: 1)

    def test_the_exception_of_a_worker_is_raised_only_if_it_has_ended_the_job(self):
        for rank, result in enumerate([(True, 7), (False, (KeyError("one"), "traceback"))]):
            _launch.result_file(self.folder, 0, rank).write_bytes(pickle.dumps(result))
        report = {"state": "ended", "exit_code_of": "worker", "what": "what has happened",
                  "failed_generations": [{"generation": 0, "first": [{"rank": 1}]}]}
        with self.assertRaisesRegex(KeyError, "one"):
            _launch._raise_failure(str(self.folder), report, 1)
        for changed, text in [
                ({"exit_code_of": "signal"}, "what has happened"),  # after a restart
                ({"exit_code_of": "ddprun"}, "what has happened"),  # saved on request, for example
                ({"state": "running"}, "ddprun was killed while the job ran"),
                (None, "the job did not start")]:
            with self.assertRaises(ddprun.LaunchError) as caught:
                _launch._raise_failure(str(self.folder),
                                       {} if changed is None else report | changed, 143)
            self.assertEqual(str(caught.exception),
                             f"launch: {text} (ddprun ended with exit code 143)")
            self.assertEqual(list(map(repr, caught.exception.exceptions)), ["1"])
            self.assertIsInstance(caught.exception.exceptions[1], KeyError)

    def test_the_report_of_an_earlier_job_is_not_this_one_s(self):
        earlier = self.folder / "report.json"
        earlier.write_text('{"state": "ended", "exit_code_of": "ddprun", "what": "earlier"}')
        with self.assertRaisesRegex(ddprun.LaunchError, "^launch: the job did not start") as caught:
            self.run_failing("raise", bogus=1, report_file=earlier)
        self.assertEqual(caught.exception.report, {})

    def test_a_package_that_is_installed_is_not_put_into_pythonpath(self):
        """PYTHONPATH comes before the standard library."""
        packages = str(frame.SOURCES / "python")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": "/mine"}):
            self.assertEqual(_launch._environment()["PYTHONPATH"], f"{packages}:/mine")
            with unittest.mock.patch("site.getsitepackages", return_value=["/a", packages]):
                self.assertEqual(_launch._environment()["PYTHONPATH"], "/mine")
            with unittest.mock.patch.multiple(
                    "site", ENABLE_USER_SITE=True, getusersitepackages=lambda: packages):
                self.assertEqual(_launch._environment()["PYTHONPATH"], "/mine")

    def test_earlier_output_comes_first(self):
        script = self.script("""
            import ddprun, launch_test_functions
            print("before")
            ddprun.launch(launch_test_functions.place, "hello")
            print("after")
        """)
        said = frame.run([sys.executable, script], cwd=self.folder,
                         env=frame.environment(PYTHONUNBUFFERED=None))
        self.assertEqual(said, "before\nhello from 0\nafter\n")

    def test_after_an_interrupt_output_is_copied_to_its_end(self):
        """The worker writes more than a pipe holds."""
        class Interrupting(io.StringIO):
            def write(self, text):
                written = super().write(text)
                if text.endswith("pausing\n"):
                    os.kill(os.getpid(), signal.SIGINT)
                return written
        with contextlib.redirect_stdout(Interrupting()) as output:
            with self.assertRaises(KeyboardInterrupt):
                ddprun.launch(self.functions.fail, "talk", nproc_per_node=2)
        self.assertIn("goodbye\n", output.getvalue())

    def started_script(self):
        """Returns a script that has launched two workers, of which one waits for ever."""
        script = self.script("""
            import ddprun, launch_test_functions
            try:
                ddprun.launch(launch_test_functions.fail, "pause", nproc_per_node=2)
            except KeyboardInterrupt:
                print("interrupted")
        """)
        process = subprocess.Popen([sys.executable, "-u", script], cwd=self.folder, text=True,
                                   env=frame.environment(TMPDIR=str(self.folder)),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        said = ""
        while "pausing" not in said:
            self.assertTrue(select.select([process.stdout], [], [], frame.PATIENCE)[0], said)
            said += os.read(process.stdout.fileno(), 1 << 16).decode()
        self.assertGreaterEqual(len(self.processes()), 3)
        return process

    def processes(self):
        """Returns the processes of the script: the folder is in their environment."""
        return [entry.name for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()
                and f"TMPDIR={self.folder}" in _environment_of(entry)]

    def test_a_script_shows_the_output_and_an_interrupt_ends_all(self):
        process = self.started_script()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=frame.PATIENCE)[0]
        self.assertTrue(said.endswith("interrupted\n"), said)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.processes(), [])

    def test_a_script_that_is_killed_leaves_no_process(self):
        process = self.started_script()
        process.kill()
        process.communicate(timeout=frame.PATIENCE)  # until the last process has ended
        deadline = time.monotonic() + frame.PATIENCE
        while self.processes():
            self.assertLess(time.monotonic(), deadline, self.processes())


def _environment_of(process: pathlib.Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


frame.main()
