"""Tests ddprun.Job and ddprun.jobs with running jobs."""
import contextlib
import os
import re
import signal
import unittest.mock

import frame

import ddprun

SCRIPT = """
    import os, signal, sys, ddprun
    def on_signal(*_):
        print("got SIGUSR1", flush=True)
    signal.signal(signal.SIGUSR1, on_signal)
    rank = ddprun.Environment.current().rank
    ddprun.report_progress(7 + rank)
    print("to stderr", file=sys.stderr)
    print(f"generation {ddprun.generation()}", flush=True)
    while True:
        signal.pause()
"""


class RunningJobs(frame.Test):
    def setUp(self):
        super().setUp()
        changed = unittest.mock.patch.dict(os.environ, {"PATH": frame.environment()["PATH"]})
        changed.start()
        self.addCleanup(changed.stop)

    def start(self, name, *options):
        job = self.job(["--nproc-per-node=2", f"--rdzv-id={name}", *options, self.script(SCRIPT)])
        job.read_until("generation 0$", 2)
        return job

    def test_a_job_tells_its_status_and_obeys(self):
        name = f"train-{os.getpid()}"
        process = self.start(name, "--max-restarts=3")
        job = ddprun.Job(name)
        status = job.status()
        self.assertEqual((status.id, status.phase, status.generation, status.restarts_used,
                          status.max_restarts), (name, "running", 0, 0, 3))
        self.assertEqual([(one.rank, one.local_rank, one.state, one.step)
                          for one in status.workers],
                         [(0, 0, "running", 7), (1, 1, "running", 8)])
        for worker in status.workers:
            os.kill(worker.pid, 0)

        job.signal(signal.SIGUSR1, rank=1)
        process.read_until(r"\[rank 1\] got SIGUSR1")
        self.assertNotIn("[rank 0] got", process.output)
        job.signal("USR1")
        process.read_until(r"\[rank 0\] got SIGUSR1")
        self.assertIn(ddprun.LogLine(1, "stderr", "to stderr"), job.logs())
        self.assertEqual([one.line for one in job.logs(rank=0)],
                         ["generation 0", "got SIGUSR1", "to stderr"])
        self.assertEqual(len(list(job.logs(rank=0, lines=1))), 2)

        job.restart()
        process.read_until("generation 1$", 2)
        self.assertEqual((job.status().generation, job.status().restarts_used), (1, 0))

        followed = job.logs(follow=True, rank=1)
        next(followed)
        job.stop(now=True)
        for _ in followed:  # it ends with the job
            pass
        self.assertRegex(process.end(143), "was stopped")
        with self.assertRaises(ddprun.JobNotFoundError) as caught:
            job.status()
        self.assertRegex(str(caught.exception), f"^ddprun: no job '{name}' of user .* on this ")
        self.assertEqual(caught.exception.exit_code, 72)

    def test_jobs_of_one_name_are_told_apart(self):
        """Jobs of other tests may run, too."""
        started = [self.start("same") for _ in range(2)]
        mine = {repr(ddprun.Job(one.process.pid)) for one in started}
        found = [job for job in ddprun.jobs() if repr(job) in mine]
        self.assertEqual(len(found), 2)
        self.assertEqual([job.status().id for job in found], ["same", "same"])
        for name in ("same", None):
            with self.assertRaises(ddprun.JobError) as caught:
                ddprun.Job(name).status()
            self.assertNotIsInstance(caught.exception, ddprun.JobNotFoundError)
            self.assertEqual(caught.exception.exit_code, 2)
        for job in found:
            job.stop(now=True)
        self.assertFalse(mine & {repr(job) for job in ddprun.jobs()})

    def test_without_jobs_there_is_an_empty_list(self):
        with unittest.mock.patch("ddprun._job._ask", return_value=(
                72, {"agents": [], "error": "no job", "ok": False})):
            self.assertEqual(ddprun.jobs(), [])

    def test_an_agent_that_has_no_place_yet_has_no_number_of_restarts(self):
        """The service is silent, too."""
        answer = {"ok": True, "agents": [{"job": "train", "pid": 7, "phase": "joining",
                                          "generation": 0, "max_restarts": 3}]}
        with unittest.mock.patch("ddprun._job._ask", return_value=(0, answer)):
            status = ddprun.Job("train").status()
        self.assertEqual((status.phase, status.restarts_used, status.max_restarts, status.workers),
                         ("joining", None, 3, ()))
        self.assertEqual(status.details, answer)

    def test_a_service_needs_a_name(self):
        with self.assertRaisesRegex(ValueError, "^Job: a name is missing: rdzv_endpoint asks a "):
            ddprun.Job(rdzv_endpoint="node0:29400")

    def test_a_name_that_begins_with_a_dash_is_a_name(self):
        self.assertEqual(repr(ddprun.Job("-train", rdzv_endpoint="node0:29400")),
                         "ddprun.Job('-train', rdzv_endpoint='node0:29400')")
        job = ddprun.Job("-train")
        for ask in (job.status, job.stop, job.restart, lambda: job.signal("USR1", rank=0),
                    lambda: list(job.logs())):
            with self.assertRaisesRegex(ddprun.JobNotFoundError, "^ddprun: no job '-train' of "):
                ask()

    def test_a_name_or_a_signal_that_none_can_be_is_one_line(self):
        for name in ("", "a\nb", "a\0"):
            with self.assertRaisesRegex(ValueError, r"^Job: invalid name '[^\n]*' \(expected"):
                ddprun.Job(name)
        with self.assertRaisesRegex(TypeError, r"^Job.signal: invalid signal None \(expected"):
            ddprun.Job("a").signal(None)

    def test_a_bad_value_is_the_command_s_error(self):
        process = self.start("train")
        job = ddprun.Job(process.process.pid)
        for asked, expected in [
                (lambda: job.signal("FOO"), "signal: invalid value 'FOO'"),
                (lambda: list(job.logs(rank=9)), "9"),
                (lambda: ddprun.Job(bogus=1).stop(), "--bogus"),
                (lambda: ddprun.Job("a", rdzv_endpoint="127.0.0.1:1").status(), "127.0.0.1:1")]:
            with self.assertRaises(ddprun.JobError) as caught:
                asked()
            self.assertRegex(str(caught.exception), "^ddprun: .*" + re.escape(expected))
        with contextlib.closing(job.logs(follow=True)) as lines:
            next(lines)  # a reader that stops early leaves no process
        process.kill()


frame.main()
