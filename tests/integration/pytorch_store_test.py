#!/usr/bin/env python3
"""PyTorch's own TCPStore client against ddp-store, and the same calls against PyTorch's own server.

    pytorch_store_test.py BIN_DIR [unittest arguments]

What both servers answer must be equal; where PyTorch's own two servers differ, docs/wire_protocol.md
says what ours does, and a test here says so, too. Also process groups over gloo that meet in ddp-store,
and ddprun's C++ client against PyTorch's servers. Needs torch; exits with 77 (skipped) without it.
"""

import contextlib
import datetime
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import unittest
import warnings

os.environ["PYTHONWARNINGS"] = "ignore"
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # a wait that times out is not worth a stack trace here
warnings.simplefilter("ignore")
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: this python has no torch ({error})")
    sys.exit(77)

BIN = ""  # given on the command line
WAIT = datetime.timedelta(seconds=20)
SHORT = datetime.timedelta(milliseconds=60)

# Workers and PyTorch's servers are processes; torch is imported once, by the process they fork from.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch.distributed"])


def connect(port, **options):
    return dist.TCPStore("127.0.0.1", port, None, False, WAIT, wait_for_workers=False, **options)


# --- servers ---


@contextlib.contextmanager
def ddp_store(**environment):
    """Yields port and process; at the end it must leave cleanly."""
    server = subprocess.Popen(
        [os.path.join(BIN, "ddp-store"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = server.stdout.readline()
        assert re.fullmatch(r"ddp-store: listening on 127\.0\.0\.1:\d+\n", line), line
        server.port = int(line.rsplit(":", 1)[1])
        yield server
        server.terminate()
        _, server.log = server.communicate(timeout=10)
        assert server.returncode == 0, (server.returncode, server.log)
    finally:
        server.kill()
        server.wait()


def serve_pytorch(pipe, use_libuv):
    store = dist.TCPStore(
        "127.0.0.1", 0, None, True, WAIT, wait_for_workers=False, use_libuv=use_libuv
    )
    pipe.send(store.port)
    with contextlib.suppress(EOFError):
        pipe.recv()


@contextlib.contextmanager
def pytorch_store(use_libuv=True):
    ours, theirs = processes.Pipe()
    server = processes.Process(target=serve_pytorch, args=(theirs, use_libuv), daemon=True)
    server.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        server.join(10)
        server.kill()


# --- transcripts ---


class Transcript:
    """Calls and what came of them, in words that are equal for equal behaviour."""

    def __init__(self):
        self.lines = []

    def call(self, what, function, *arguments, **options):
        try:
            result = function(*arguments, **options)
            if isinstance(result, (bytes, str)) and len(result) > 200:
                result = (len(result), hash(result))
            if what.startswith("list_keys"):
                result = sorted(result)
            text = repr(result)
        except Exception as error:  # whatever the client raises is part of its behaviour
            text = f"raises {type(error).__name__}"
            found = re.search(r"wait timeout after \d+ms, keys: .*", str(error))
            if found:
                text += " " + found.group(0)
        self.lines.append(f"{what} -> {text}")


def values(store, say):
    say("set", store.set, "k", "one")
    say("set again", store.set, "k", "two")
    say("get", store.get, "k")
    say("empty value", store.set, "empty", "")
    say("get empty value", store.get, "empty")
    say("empty key", store.set, "", "v")
    say("get empty key", store.get, "")
    say("bytes", store.set, "bytes", "a\0b\u00ff\n")
    say("get bytes", store.get, "bytes")
    say("key with a zero", store.set, "a\0b", "v")
    say("check key with a zero", store.check, ["a\0b"])
    say("check its beginning", store.check, ["a"])
    say("1 MiB", store.set, "large", "v" * (1 << 20))
    say("get 1 MiB", store.get, "large")
    say("8 MiB", store.set, "largest", "w" * (8 << 20))
    say("get 8 MiB", store.get, "largest")
    say("longest key", store.set, "k" * 8191, "v")
    say("get longest key", store.get, "k" * 8191)


def counters(store, say):
    say("add", store.add, "n", 5)
    say("add less", store.add, "n", -8)
    say("get counter", store.get, "n")
    say("add nothing", store.add, "zero", 0)
    say("get zero", store.get, "zero")
    for text in ("12abc", " 7 ", "+3", "-4x", "007", "0x10", "1e3"):
        say(f"set {text!r}", store.set, "text", text)
        say(f"add to {text!r}", store.add, "text", 1)
        say("get", store.get, "text")
    say("set most", store.set, "most", str(2**63 - 1))
    say("add to most", store.add, "most", 1)
    say("get most", store.get, "most")


def compare_set(store, say):
    say("new", store.compare_set, "c", "", "one")
    say("equal", store.compare_set, "c", "one", "two")
    say("different", store.compare_set, "c", "one", "three")
    say("get", store.get, "c")
    say("missing, expected", store.compare_set, "c2", "one", "two")
    say("check missing", store.check, ["c2"])
    say("to empty", store.compare_set, "c", "two", "")
    say("from empty", store.compare_set, "c", "", "four")
    say("get", store.get, "c")


def keys(store, say):
    say("num_keys", store.num_keys)
    say("append", store.append, "a", "1")
    say("append again", store.append, "a", "2")
    say("get", store.get, "a")
    say("check", store.check, ["a"])
    say("check both", store.check, ["a", "b"])
    say("check nothing", store.check, [])
    say("multi_set", store.multi_set, ["m1", "m2", "m1"], ["1", "", "3"])
    say("multi_get", store.multi_get, ["m2", "m1", "a"])
    say("multi_get nothing", store.multi_get, [])
    say("multi_set nothing", store.multi_set, [], [])
    say("num_keys", store.num_keys)
    say("list_keys", store.list_keys)
    say("delete", store.delete_key, "a")
    say("delete again", store.delete_key, "a")
    say("num_keys", store.num_keys)
    say("has_extended_api", store.has_extended_api)


def waits(store, say):
    store.set("k", "v")
    say("wait", store.wait, ["k"])
    say("wait twice the same", store.wait, ["k", "k"])
    say("wait for nothing", store.wait, [])
    for _ in range(3):
        say("wait missing", store.wait, ["missing"], SHORT)
        say("get after a wait that timed out", store.get, "k")
        say("add after a wait that timed out", store.add, "n", 1)
    say("wait for several", store.wait, ["k", "missing", "other"], SHORT)
    store.set_timeout(SHORT)
    say("get missing", store.get, "missing")
    say("multi_get missing", store.multi_get, ["k", "missing"])
    store.set_timeout(WAIT)
    say("get at last", store.get, "k")


def queues(store, say):
    say("len of nothing", store.queue_len, "q")
    say("pop from nothing", store.queue_pop, "q", False)
    say("push", store.queue_push, "q", "one")
    say("push empty", store.queue_push, "q", "")
    say("len", store.queue_len, "q")
    say("check", store.check, ["q"])
    say("wait", store.wait, ["q"])
    say("num_keys", store.num_keys)
    say("list_keys", store.list_keys)
    say("delete", store.delete_key, "q")
    say("pop", store.queue_pop, "q")
    say("pop", store.queue_pop, "q", block=False)
    say("check", store.check, ["q"])
    say("pop from nothing", store.queue_pop, "q", False)
    store.set_timeout(SHORT)
    say("pop waiting", store.queue_pop, "q")
    store.set_timeout(WAIT)
    say("push", store.queue_push, "q", "two")
    say("pop", store.queue_pop, "q")


def prefixes(store, say):
    inner = dist.PrefixStore("outer", dist.PrefixStore("inner/", store))
    inner.set_timeout(WAIT)
    say("set", inner.set, "k", "v")
    say("get", inner.get, "k")
    say("add", inner.add, "n", 3)
    say("multi_set", inner.multi_set, ["a", "b"], ["1", "2"])
    say("multi_get", inner.multi_get, ["b", "a"])
    say("check", inner.check, ["k"])
    say("compare_set", inner.compare_set, "c", "", "v")
    say("append", inner.append, "k", "w")
    say("get", inner.get, "k")
    say("delete", inner.delete_key, "k")
    say("num_keys", inner.num_keys)
    say("list_keys of all", store.list_keys)


def clones(store, say):
    other = store.clone()
    say("set", store.set, "k", "v")
    say("get of the clone", other.get, "k")
    say("num_keys of the clone", other.num_keys)
    say("wait of the clone", other.wait, ["missing"], SHORT)
    say("get", store.get, "k")


def two_clients(port, say):
    """One waits, the other creates the key, in every way there is."""
    waiting, creating = connect(port), connect(port)
    ways = {
        "set": lambda key: creating.set(key, "v"),
        "add": lambda key: creating.add(key, 0),
        "append": lambda key: creating.append(key, "v"),
        "multi_set": lambda key: creating.multi_set(["x", key], ["1", "2"]),
        "compare_set": lambda key: creating.compare_set(key, "", "v"),
        "queue_push": lambda key: creating.queue_push(key, "v"),
    }
    for name, create in ways.items():
        key = f"by_{name}"
        # The waiter's turn may come late: then the key is there, and it must say so all the same.
        waiter = threading.Thread(target=say, args=(f"wait, {name}", waiting.wait, [key]))
        waiter.start()
        create(key)
        waiter.join()
    for value in "abc":
        popper = threading.Thread(target=say, args=("pop that waits", waiting.queue_pop, "q"))
        popper.start()
        creating.queue_push("q", value)
        popper.join()
    say("left in the queue", creating.queue_len, "q")


def transcript_of(story, port, takes_port=False):
    transcript = Transcript()
    story(port if takes_port else connect(port), transcript.call)
    return transcript.lines


class SameAsPyTorchsServer(unittest.TestCase):
    maxDiff = None

    def compare(self, story, use_libuv=True, takes_port=False):
        with ddp_store() as ours, pytorch_store(use_libuv) as theirs:
            got = transcript_of(story, ours.port, takes_port)
            expected = transcript_of(story, theirs, takes_port)
        self.assertGreater(len(got), 3)
        self.assertEqual(got, expected)

    def test_values(self):
        self.compare(values)

    def test_counters(self):
        self.compare(counters)

    def test_compare_set(self):
        self.compare(compare_set)

    def test_keys(self):
        self.compare(keys)

    def test_waits(self):
        self.compare(waits)

    def test_queues(self):
        self.compare(queues)

    def test_prefixes(self):
        self.compare(prefixes)

    def test_clones(self):
        self.compare(clones)

    def test_two_clients(self):
        self.compare(two_clients, takes_port=True)

    def test_values_and_counters_of_the_older_server(self):
        self.compare(values, use_libuv=False)
        self.compare(counters, use_libuv=False)
        self.compare(compare_set, use_libuv=False)
        self.compare(waits, use_libuv=False)

    def test_workers_are_counted(self):
        """The client of rank 0 waits for the others; all count themselves in the key init/."""

        def world(port):
            others = [
                threading.Thread(
                    target=dist.TCPStore, args=("127.0.0.1", port, 3, False, WAIT, False)
                )
                for _ in range(2)
            ]
            for other in others:
                other.start()
            first = dist.TCPStore("127.0.0.1", port, 3, False, WAIT, wait_for_workers=True)
            for other in others:
                other.join()
            return first.num_keys(), first.list_keys()

        with ddp_store() as ours, pytorch_store() as theirs:
            self.assertEqual(world(ours.port), world(theirs))


class OurStore(unittest.TestCase):
    def test_a_key_that_holds_no_number_ends_the_client_that_adds_and_no_other(self):
        with ddp_store() as server:
            bad, good = connect(server.port), connect(server.port)
            bad.set("text", "abc")
            with self.assertRaises(dist.DistNetworkError):
                bad.add("text", 1)
            with self.assertRaises(dist.DistNetworkError):
                bad.get("text")
            self.assertEqual(good.get("text"), b"abc")
        self.assertRegex(
            server.log,
            r"\Addp-store: warning: store: closed the connection of 127\.0\.0\.1:\d+: "
            r"ADD: the key holds no number\n\Z",
        )

    def test_what_is_too_long_ends_the_client_that_sends_it_and_no_other(self):
        with ddp_store() as server:
            good = connect(server.port)
            for key, value in (("k" * 8192, ""), ("k", "v" * ((8 << 20) + 1))):
                bad = connect(server.port)
                with self.assertRaises(dist.DistNetworkError):
                    bad.set(key, value)
                    bad.get("k")
            self.assertEqual(good.num_keys(), 0)
        self.assertEqual(server.log.count("closed the connection"), 2)

    def test_clients_that_come_before_the_store_get_in(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sums = []
        client = threading.Thread(target=lambda: sums.append(connect(port).add("n", 7)))
        client.start()
        server = subprocess.Popen(
            [os.path.join(BIN, "ddp-store"), "--listen", f"127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
        )
        try:
            client.join()
        finally:
            server.terminate()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(sums, [7])


# --- process groups ---


def worker(rank, world, port, environment, pipe):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        **environment,
    )
    if environment.get("TORCH_DISTRIBUTED_DEBUG"):
        dist.set_debug_level_from_env()
    dist.init_process_group("gloo", timeout=WAIT)
    one = torch.full((3,), float(rank + 1))
    dist.all_reduce(one)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    two = torch.full((2,), float(rank))
    dist.all_reduce(two, group=pairs[rank // 2])
    dist.monitored_barrier(timeout=WAIT)
    dist.barrier()
    pipe.send((one.tolist(), two.tolist()))
    pipe.recv()  # nobody leaves before the keys have been looked at
    dist.destroy_process_group()


class ProcessGroups(unittest.TestCase):
    def run_world(self, world, port, **environment):
        """The keys that the group leaves in the store."""
        with contextlib.ExitStack() as ends:
            pipes, workers = [], []
            for rank in range(world):
                ours, theirs = processes.Pipe()
                process = processes.Process(
                    target=worker, args=(rank, world, port, environment, theirs)
                )
                process.start()
                ends.callback(process.kill)
                theirs.close()
                pipes.append(ours)
                workers.append(process)
            for rank, pipe in enumerate(pipes):
                one, two = pipe.recv()
                self.assertEqual(one, [world * (world + 1) / 2] * 3)
                self.assertEqual(two, [2.0 * (rank - rank % 2) + 1] * 2)
            keys = sorted(connect(port).list_keys())
            for pipe in pipes:
                pipe.send("go")
            for process in workers:
                process.join(20)
                self.assertEqual(process.exitcode, 0)
        return keys

    def same_keys(self, world, key="default_pg/0//cpu//0/0", **environment):
        """key: one that is only there if what the environment asks for was done."""
        with ddp_store() as ours, pytorch_store() as theirs:
            got = self.run_world(world, ours.port, **environment)
            expected = self.run_world(world, theirs, **environment)
        self.assertEqual(ours.log, "")
        self.assertEqual(got, expected)
        self.assertIn(key, got)

    def test_two_ranks(self):
        self.same_keys(2)

    def test_four_ranks(self):
        self.same_keys(4)

    def test_barrier_in_the_store(self):
        self.same_keys(
            4, "default_pg/store_based_barrier_key:0:last_worker", TORCH_DIST_INIT_BARRIER="1"
        )

    def test_debug_detail(self):
        self.same_keys(
            2, "default_pg/0//cpu//pg_wrapper:0/0/0", TORCH_DISTRIBUTED_DEBUG="DETAIL"
        )

    def test_gloo_with_the_extended_store_api(self):
        self.same_keys(2, GLOO_ENABLE_STORE_V2_API="1")


# --- ddprun's C++ client ---


class OurClient(unittest.TestCase):
    maxDiff = None

    def probe(self, port, *known):
        done = subprocess.run(
            [os.path.join(BIN, "store_client_probe"), f"127.0.0.1:{port}", *known],
            stdout=subprocess.PIPE,
            text=True,
            timeout=30,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.splitlines()

    def test_gets_the_same_from_all_servers(self):
        for use_libuv, known in ((True, ["queues", "list_keys"]), (False, [])):
            with ddp_store() as ours, pytorch_store(use_libuv) as theirs:
                self.assertEqual(self.probe(ours.port, *known), self.probe(theirs, *known))

    def test_gets_the_same_under_the_stock_torchrun(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        known = ["queues", "list_keys"]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
            + ["--master-addr", "127.0.0.1", "--master-port", str(port), "--no-python"]
            + ["sh", "-c", 'exec "$0" "$MASTER_ADDR:$MASTER_PORT" "$@"']
            + [os.path.join(BIN, "store_client_probe"), *known],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

        def without_counts(lines):  # torchrun has keys of its own in there
            return [line for line in lines if not line.startswith("num_keys")]

        with ddp_store() as ours:
            expected = self.probe(ours.port, *known)
        self.assertEqual(without_counts(done.stdout.splitlines()), without_counts(expected))

    def test_barrier_which_pytorch_has_not_yet(self):
        with ddp_store() as ours:
            self.assertEqual(
                self.probe(ours.port, "barrier")[-3:],
                [
                    "barrier of one: done",
                    "barrier of two: error of kind timeout",
                    "set after the barrier: done",
                ],
            )

    def test_sees_the_keys_of_pytorchs_client(self):
        with ddp_store() as server:
            python = connect(server.port)
            python.set("probe/large", "will be overwritten")
            self.probe(server.port)
            self.assertEqual(python.get("probe/n"), b"-2")
            self.assertEqual(len(python.get("probe/large")), 8 << 20)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
