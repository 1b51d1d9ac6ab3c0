"""Tests ddprun.launch: results, failures and interrupts of real jobs."""
import contextlib
import io
import json
import os
import pathlib
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

import frame

import ddprun
from ddprun import _exchange, _launch

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

    def large():
        from ddprun import _exchange
        _exchange.MAX_BYTES = 1000
        return bytes(2000)

    def fail(how, after=0):
        rank = ddprun.Environment.current().rank
        if how == "deaf":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
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
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                print("pausing", flush=True)
                signal.sigwait({signal.SIGINT})
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
        with self.assertRaisesRegex(ValueError, "^launch: nnodes is refused"):
            self.run_failing("raise", nnodes=2)
        with self.assertRaisesRegex(
                ddprun.LaunchError,
                r"^launch: [^\n]*--bogus[^\n]* \(ddprun ended with exit code 2\)$"):
            self.run_failing("raise", bogus=1)
        with self.assertRaisesRegex(ValueError, "^launch: None is not a function$"):
            ddprun.launch(None)
        with unittest.mock.patch.dict(sys.modules, {"cloudpickle": None}):
            with self.assertRaisesRegex(ValueError, r"cannot be sent \(pip install cloudpickle"):
                ddprun.launch(lambda: 1)

    def test_what_cannot_be_sent_is_one_line_and_starts_nothing(self):
        with unittest.mock.patch.object(_launch, "_run", side_effect=AssertionError("started")):
            with self.assertRaisesRegex(ValueError, r"^launch: place or its arguments cannot be "
                                                    r"sent: cannot pickle '_thread.lock' object$"):
                ddprun.launch(self.functions.place, threading.Lock())
            with unittest.mock.patch.object(_exchange, "MAX_BYTES", 1000):
                with self.assertRaisesRegex(ValueError, r"^launch: place and its arguments have "
                                                        r"\d+ bytes, 1000 is the most that"):
                    ddprun.launch(self.functions.place, bytes(2000))
            with unittest.mock.patch.dict(sys.modules, {"cloudpickle": None}):
                for function in (lambda: 1, unittest.mock.patch):
                    with self.assertRaisesRegex(ValueError, "^launch: [^\n]*cannot be sent"):
                        ddprun.launch(function, threading.Lock())

    def test_a_result_that_is_too_large_is_an_error_of_that_worker(self):
        with self.assertRaisesRegex(ValueError, "^launch: the result has [0-9]+ bytes, 1000 is the "
                                                "most that is sent [^\n]*$"), \
                contextlib.redirect_stdout(io.StringIO()):
            ddprun.launch(self.functions.large, nproc_per_node=2)

    def test_a_function_that_its_worker_cannot_load_is_one_line(self):
        with unittest.mock.patch.object(sys, "path", sys.path[1:]), \
                contextlib.redirect_stdout(io.StringIO()):
            with self.assertRaisesRegex(
                    RuntimeError, "^launch: the function cannot be loaded on this worker: "
                                  "ModuleNotFoundError: No module named 'launch_test_functions'$"):
                ddprun.launch(self.functions.place, "hello", nproc_per_node=2)

    def test_others_neither_send_results_nor_get_the_call(self):
        with _exchange.Exchange(b"the call", ["127.0.0.1"], is_remote=False) as exchange:
            secret, port, address = exchange.place.split()
            for other in (secret[::-1], ""):
                with unittest.mock.patch.dict(os.environ,
                                              {"DDPRUN_LAUNCH": f"{other}x {port} {address}"}):
                    peer = _exchange.Client(0, 0)
                for part in (peer.call, lambda: peer.send(b"\1", b"result")):
                    with self.assertRaisesRegex(ConnectionError, "cannot reach the process that "
                                                "called launch, at port [0-9]+ of 127.0.0.1: it "):
                        part()
            with socket.create_connection((address, int(port))) as peer:
                peer.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 200)
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(4096):
                        pass
            with unittest.mock.patch.dict(os.environ, {"DDPRUN_LAUNCH": exchange.place}):
                client = _exchange.Client(2, 7)
            self.assertEqual(client.call(), b"the call")
            self.assertEqual(exchange.close()[2, 7], b"\1" + pickle.dumps(None))

    def hosts(self, names, **options):
        """Starts `place` on hosts that are this one, with the environment of an ssh session.

        A host under two names is refused, so each has a host name of its own.
        """
        ssh = self.folder / "ssh"
        ssh.write_text(f"""#!/bin/sh
            while [ "$1" != -- ]; do shift; done
            case $2 in lost*) echo "ssh: no route to $2" >&2; exit 255;; esac
            own="unshare --uts"
            $own true 2>/dev/null || own="unshare --map-root-user --uts"
            exec $own env -i HOME="$HOME" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 \
              SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" sh -c "$3"
        """)
        ssh.chmod(0o755)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            return self.on_hosts(names, ssh, output, **options)

    def on_hosts(self, names, ssh, output, how=None, **options):
        function, argument = ((self.functions.place, "hello") if how is None else
                              (self.functions.fail, how))
        try:
            return ddprun.launch(function, argument, hosts=names, ssh=ssh, shutdown_grace=5,
                                 **options)
        finally:
            self.said = output.getvalue()

    def test_results_come_back_from_several_hosts(self):
        self.assertEqual(self.hosts(["node0:2", "node1:1"]),
                         [(0, 3, "hello"), (1, 3, "hello"), (2, 3, "hello")])
        self.assertIn("[rank 2] hello from 2\n", self.said)

    def test_failures_on_other_hosts_are_told_as_those_of_this_one(self):
        with self.assertRaises(ValueError) as caught:
            self.hosts("node0:1,node1:1", how="raise")
        self.assertRegex(str(caught.exception.__cause__), "(?s)rank 1:.*KeyError: 'key'")
        with self.assertRaisesRegex(
                ddprun.LaunchError,
                r"^launch: rank 1 \(.*\) was killed by SIGKILL \(ddprun ended with exit code 137"
        ) as caught:
            self.hosts("node0:1,node1:1", how="kill")
        self.assertEqual(caught.exception.report, {})
        with self.assertRaises(ddprun.LaunchError) as caught:
            self.hosts("node0:1,node1:1", how="kill", report_file=self.folder / "report.json")
        self.assertEqual(caught.exception.report["exit_code_of"], "worker")
        with self.assertRaises(ValueError):
            self.hosts("node0:1,node1:1", how="raise", log_format="json", env=None)
        self.assertEqual(self.hosts("node0:1,node1:1", how="raise", max_restarts=1), [1, 1])

    def test_a_host_that_cannot_be_reached_is_one_line(self):
        with self.assertRaisesRegex(
                ddprun.LaunchError, r"^launch: host lost1: ssh cannot connect: ssh: no route to "
                                    r"lost1[^\n]* \(ddprun ended with exit code 64\)$"):
            self.hosts(["node0", "lost1"])

    def test_a_host_that_cannot_connect_back_says_so(self):
        with unittest.mock.patch.object(_launch, "own_addresses", return_value=["127.0.0.9"]), \
                unittest.mock.patch.object(_exchange.socket, "has_dualstack_ipv6",
                                           return_value=False), \
                unittest.mock.patch.object(_exchange.socket, "create_server",
                                           _on_loopback(_exchange.socket.create_server)):
            with self.assertRaisesRegex(ddprun.LaunchError, "^launch: rank [01] .* exit"):
                self.hosts("node0:1,node1:1")
        self.assertRegex(self.said, r"(?m)^\[rank [01]\] launch: rank [01]: .* cannot reach the "
                                    r"process that called launch, at port \d+ of 127.0.0.9: ")

    def test_own_addresses_are_those_on_the_routes_to_the_hosts(self):
        hostfile = self.folder / "hosts.txt"
        hostfile.write_text("# mine\n127.0.0.9 slots=2\n\n")
        asked, probes = [], []

        def resolve(name, port, **_):
            asked.append(name)
            if name == "no-such-host.invalid":
                raise socket.gaierror(-2, "Name or service not known")
            return [(0, 0, 0, "", (name, port))]

        class Probe(contextlib.AbstractContextManager):
            def __exit__(self, *_):
                pass

            def connect(self, where):
                probes.append(where[0])

            def getsockname(self):
                return ("10.0.0.1" if probes[-1] == "gpu7" else "127.0.0.1", 1)

        with unittest.mock.patch.multiple(_exchange.socket, getaddrinfo=resolve,
                                          socket=lambda *_: Probe()):
            self.assertEqual(_exchange.own_addresses(
                "me@127.0.0.1:4,[::1]:2,no-such-host.invalid,gpu7:3", hostfile),
                ["10.0.0.1", "127.0.0.1"])
        self.assertEqual(asked, ["127.0.0.1", "::1", "no-such-host.invalid", "gpu7", "127.0.0.9",
                                 "192.0.2.1"])
        del asked[:]
        with unittest.mock.patch.object(_exchange.socket, "getaddrinfo", resolve):
            _exchange.own_addresses(",".join(["no-such-host.invalid"] * 64), None)
        self.assertEqual(len(asked), 8 + 1)
        hostfile.write_bytes(b"\xff\xfe\n")
        self.assertEqual(_exchange.own_addresses("gpu0..x,\0", hostfile)[-1], "127.0.0.1")

    def test_the_exception_of_a_worker_is_raised_only_if_it_has_ended_the_job(self):
        results = {(0, 0): b"\1" + pickle.dumps(Nowhere()),  # it hides no exception
                   (0, 1): failure(KeyError("one"))}
        report = {"state": "ended", "exit_code_of": "worker", "what": "what has happened",
                  "failed_generations": [{"generation": 0, "first": [{"rank": 1}]}]}
        with self.assertRaisesRegex(KeyError, "one"):
            _launch._raise_failure(results, report, 1)
        for changed, text in [
                ({"exit_code_of": "signal"}, "what has happened"),  # after a restart
                ({"exit_code_of": "ddprun"}, "what has happened"),  # saved on request, for example
                ({"state": "running"}, "ddprun was killed while the job ran"),
                (None, "the job has ended without a report")]:
            with self.assertRaises(ddprun.LaunchError) as caught:
                _launch._raise_failure(results, {} if changed is None else report | changed, 143)
            self.assertEqual(str(caught.exception),
                             f"launch: {text} (ddprun ended with exit code 143)")
            self.assertEqual(list(map(repr, caught.exception.exceptions)), ["1"])
            self.assertIsInstance(caught.exception.exceptions[1], KeyError)
        with self.assertRaisesRegex(ddprun.LaunchError, "^launch: the job did not start "):
            _launch._raise_failure({}, {}, 64)

    def test_an_exception_of_a_class_that_is_not_here_is_its_last_line(self):
        results = {(0, 1): failure(Nowhere(), "Traceback ...\nmine.Odd: no data\n")}
        report = {"state": "ended", "exit_code_of": "worker", "what": "what has happened",
                  "failed_generations": [{"generation": 0, "first": [{"rank": 1}]}]}
        with self.assertRaisesRegex(RuntimeError, "^mine.Odd: no data$") as caught:
            _launch._raise_failure(results, report, 1)
        self.assertIn("Traceback ...", str(caught.exception.__cause__))

    def test_a_result_that_cannot_be_unpickled_here_keeps_the_others(self):
        data = {0: memoryview(b"\1" + pickle.dumps(7)), 1: b"\1" + pickle.dumps(Nowhere())}
        with self.assertRaisesRegex(
                ddprun.LaunchError, "^launch: the result of rank 1 cannot be unpickled here: "
                                    "ValueError: [^\n]*LaunchError.results") as caught:
            _launch._loaded(data)
        self.assertEqual(pickle.loads(caught.exception.results[0]), 7)
        self.assertEqual(sorted(caught.exception.results), [0, 1])

    def test_what_ddprun_has_printed_names_the_first_failures(self):
        first = {"state": "ended", "exit_code_of": "worker", "what": "rank 2 (pid 5) exited with 1",
                 "failed_generations": [{"first": [{"rank": 2}, {"rank": 0}]}]}
        messages = ["first failure: rank 1 (pid 1) exited with 1", "restarting",
                    "first failure: rank 2 (pid 5) exited with 1",
                    "or, at about the same time: rank 0 (pid 4) exited with 1", "1 restart"]
        for lines in (["ddprun: error: " + one for one in messages],
                      [json.dumps({"level": "error", "message": one}) for one in messages]):
            lines += ["[rank 1] ddprun: first failure: rank 7 x", '{"line": "x"}', "{", "[1]"]
            own = [one for one in map(_launch._own_message, lines) if one is not None]
            self.assertEqual(own, messages)
            self.assertEqual(_launch._printed_report(own), first)
        self.assertEqual(_launch._printed_report(["one", "two"]), {"state": "ended", "what": "two"})
        self.assertEqual(_launch._printed_report([]), {})

    def test_the_report_of_an_earlier_job_is_not_this_one_s(self):
        earlier = self.folder / "report.json"
        earlier.write_text('{"state": "ended", "exit_code_of": "ddprun", "what": "earlier"}')
        with self.assertRaisesRegex(ddprun.LaunchError, "^launch: .*bogus") as caught:
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

    def started_script(self, how="pause"):
        """Returns a script that has launched two workers, of which one waits for ever."""
        script = self.script(f"""
            import ddprun, launch_test_functions
            try:
                ddprun.launch(launch_test_functions.fail, "{how}", nproc_per_node=2)
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

    def test_a_second_interrupt_kills_workers_that_do_not_end(self):
        process = self.started_script("deaf")
        process.send_signal(signal.SIGINT)
        said = ""
        while "SIGINT: passing it on" not in said:
            self.assertTrue(select.select([process.stdout], [], [], frame.PATIENCE)[0], said)
            said += os.read(process.stdout.fileno(), 1 << 16).decode()
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=frame.PATIENCE)[0]
        self.assertTrue(said.endswith("interrupted\n"), said)
        self.assertEqual(self.processes(), [])

    def test_a_script_that_is_killed_leaves_no_process(self):
        process = self.started_script()
        process.kill()
        process.communicate(timeout=frame.PATIENCE)  # until the last process has ended
        deadline = time.monotonic() + frame.PATIENCE
        while self.processes():
            self.assertLess(time.monotonic(), deadline, self.processes())


class Nowhere(Exception):
    """Cannot be unpickled, like what needs a module or a GPU that is missing."""

    def __reduce__(self):
        return int, ("x",)


def failure(error, text="traceback"):
    """Returns what a worker sends for an exception."""
    return b"\0" + pickle.dumps((pickle.dumps(error), text))


def _on_loopback(create_server):
    """Returns a create_server() that listens on 127.0.0.1 only."""
    return lambda address, **options: create_server(("127.0.0.1", address[1]), **options)


def _environment_of(process: pathlib.Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


frame.main()
