#!/usr/bin/env python3
"""Tests DistributedDataParallel on the backend "ddprun", and what ranks learn of failures.

    failures_test.py LIBRARY_DIR [unittest arguments]
"""
import datetime
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

import ranks
import torch
import torch._dynamo  # noqa: F401  DDP imports it: here once, not in every rank

from ranks import dist, run

SOON = 1  # seconds, in which a rank learns of a peer's death
PYTHON_DIR = str(ranks.ROOT / "python")


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))


def train(rank, size, steps=4):
    """Returns the bytes of the weights after some steps."""
    model = torch.nn.parallel.DistributedDataParallel(model_of(rank), bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [one.detach().tolist() for one in model.parameters()]


def train_with_hook(rank, size):
    """Returns the gradients of a hook that halves them in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = torch.nn.parallel.DistributedDataParallel(model_of(1))
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    model(torch.full((2, 20), rank + 1.)).sum().backward()
    return [one.grad.tolist() for one in model.parameters()]


# --- deaths ---


def die(file):
    pathlib.Path(file).write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def learn_of_death(file, wait):
    """Returns what wait() raises, and the seconds since the death."""
    try:
        wait()
    except RuntimeError as error:
        return str(error), time.monotonic() - float(pathlib.Path(file).read_text())
    raise AssertionError("the death of rank 1 was not noticed")


def reduce_with_the_dead(rank, size, file, is_async):
    dist.barrier()
    if rank == 1:
        die(file)
    tensor = torch.ones(10)
    return learn_of_death(file, lambda: (
        dist.all_reduce(tensor, async_op=True).wait() if is_async else dist.all_reduce(tensor)))


def receive_from_the_dead(rank, size, file):
    dist.barrier()
    if rank == 1:
        die(file)
    return learn_of_death(file, lambda: dist.recv(torch.ones(10), 1))


def train_with_the_dead(rank, size, file):
    model = torch.nn.parallel.DistributedDataParallel(model_of(1))
    dist.barrier()
    if rank == 1:
        die(file)
    return learn_of_death(file, lambda: model(torch.randn(8, 20)).sum().backward())


def leave_a_child_behind(rank, size, file, is_over):
    """Each rank is on a node of its own. Rank 1 dies, a child of its fork lives."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                      GROUP_RANK=str(rank), GROUP_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="1")
    group = dist.new_group()
    dist.barrier(group)
    # Messages have a connection of their own.
    right, left = (rank + 1) % size, (rank - 1) % size
    work = dist.isend(torch.ones(1), right, group=group)
    dist.recv(torch.ones(1), left, group=group)
    work.wait()
    if rank == 1:
        if os.fork() == 0:
            deadline = time.monotonic() + 20
            while not os.path.exists(is_over) and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(0)
        die(file)
    try:
        return learn_of_death(file, lambda: dist.recv(torch.ones(10), 1, group=group))
    finally:
        pathlib.Path(f"{is_over}.{rank}").touch()
        if all(os.path.exists(f"{is_over}.{one}") for one in (0, 2)):
            pathlib.Path(is_over).touch()


# --- other failures ---


def call_differently(rank, size, what):
    calls = {
        "size": lambda: dist.all_reduce(torch.ones(10 + rank)),
        "type": lambda: dist.all_reduce(torch.ones(
            10, dtype=[torch.float32, torch.int32][rank % 2])),
        "operation": lambda: dist.all_reduce(
            torch.ones(1), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank % 2]),
        "collective": lambda: [dist.barrier, lambda: dist.all_reduce(torch.ones(1))][rank % 2](),
        "root": lambda: dist.broadcast(torch.ones(1), rank),
    }
    told = []
    for _ in range(2):  # the second call learns that the group has ended
        try:
            calls[what]()
        except RuntimeError as error:
            told.append(str(error))
    return told


def wait_too_long(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(milliseconds=200))
    told = None
    dist.monitored_barrier(group)
    if rank == 0:
        try:
            dist.monitored_barrier(group)
        except RuntimeError as error:
            told = str(error)
    dist.barrier()  # the world is another group
    return told


def abort_from_a_thread(rank, size):
    if rank == 1:
        threading.Thread(target=dist.group.WORLD.abort).start()
    try:
        dist.recv(torch.ones(1), 1 - rank)
    except RuntimeError as error:
        return str(error)
    return None


def fork_and_end(rank, size):
    """A child of a fork leaves the group to its parent."""
    work = dist.irecv(torch.ones(1), 1 - rank)
    child = os.fork()
    if child == 0:
        told = []
        for call in (dist.barrier, lambda: dist.all_reduce(torch.ones(1)), work.wait,
                     dist.monitored_barrier, lambda: dist.send(torch.ones(1), 1 - rank)):
            try:
                call()
            except RuntimeError as error:
                told.append("the child of a fork" in str(error))
        dist.group.WORLD.abort()
        dist.group.WORLD.shutdown()
        os._exit(0 if told == [True] * 5 else 1)
    if os.waitpid(child, 0)[1] != 0:
        raise AssertionError("the child failed")
    dist.barrier()
    dist.send(torch.ones(1), 1 - rank)
    work.wait()
    return True


def close_during_a_call(rank, size):
    """Returns what a thread learns whose group is closed during its call."""
    group = dist.new_group()
    told = []

    def wait():
        try:
            dist.recv(torch.ones(1), 1 - rank, group=group)
        except RuntimeError as error:
            told.append(str(error))

    if rank == 0:
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            # It ends by the close, whether it has begun or not.
            group.recv([torch.ones(1)], 1, 7).wait(datetime.timedelta(milliseconds=50))
        except RuntimeError:
            pass
        group._close(0)
        thread.join()
    dist.barrier()  # rank 1 has not left before
    return told


# --- forming groups ---


def create(store, rank, size, name):
    from ddprun import _process_group

    return _process_group.create(types.SimpleNamespace(
        group_rank=rank, group_size=size, global_ranks_in_group=[0, 1], group_id=name, store=store,
        timeout=datetime.timedelta(seconds=20)))


def form_groups_in_threads(rank, size):
    """Each rank forms two groups at a time over one TCPStore, in different orders."""
    port = [None]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, 0)
    if rank == 1:
        store = dist.TCPStore("127.0.0.1", port[0], is_master=False)
    groups = {}

    def form(name):
        groups[name] = create(dist.PrefixStore(name, store), rank, size, name)

    names = ["a", "b"] if rank == 0 else ["b", "a"]
    threads = [threading.Thread(target=form, args=(name,)) for name in names]
    threads[0].start()
    threads[0].join(0.3)  # it waits for the other rank now
    threads[1].start()
    for one in threads:
        one.join()
    for name in ("a", "b"):
        groups[name].barrier().wait()
        groups[name].shutdown()
    dist.barrier()
    return True


class InterruptedStore:
    def add(self, key, value):
        return 1

    def set(self, key, value):
        raise KeyboardInterrupt


def interrupt_forming(rank, size):
    try:
        create(InterruptedStore(), 0, 2, "interrupted")
    except KeyboardInterrupt:
        return True
    return False


class OlderStore:
    """A store whose rank has another version of ddprun."""

    def __init__(self, store):
        self._store = store

    def set(self, key, value):
        self._store.set(key, re.sub(rb"^ddprun-cpu-\d+", b"ddprun-cpu-0", value))

    def __getattr__(self, name):
        return getattr(self._store, name)


def meet_another_version(rank, size, file):
    store = dist.FileStore(file, size)
    try:
        create(OlderStore(store) if rank == 1 else store, rank, size, "versions")
    except RuntimeError as error:
        return str(error)
    return None


def ask_to_reconfigure(rank, size):
    """Returns what the group says, as PyTorch 2.14 asks it."""
    from ddprun import _registration

    group = dist.group.WORLD
    told = [group.supports_reconfigure]
    asked = types.SimpleNamespace(enable_reconfigure=True)
    for call in (group.get_reconfigure_handle, lambda: group.reconfigure(None),
                 lambda: _registration._create(asked, None)):
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))
    dist.barrier()  # the group goes on
    return told


def own_addresses(rank, size):
    """Returns the own addresses for masters that resolve to loopback."""
    from ddprun import _process_group

    known = socket.getaddrinfo
    found = {}
    for master in ("node0", "127.0.0.1", "localhost"):
        os.environ["MASTER_ADDR"] = master
        socket.getaddrinfo = lambda *_, **how: known("127.0.0.1", 1, **how)
        found[master] = _process_group._own_address()
    socket.getaddrinfo = known
    longest = _process_group._nanoseconds(datetime.timedelta.max)
    return found, longest < 2**63


def output_of(code, **variables):
    """Returns the output of a python program."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PYTHON_DIR, **variables}, check=False)
    return done.stdout + done.stderr


class Ddp(unittest.TestCase):
    def test_trains_to_the_same_bits_in_every_run_and_to_those_of_gloo_but_for_rounding(self):
        first = run(3, train)
        for weights in first + run(3, train):
            self.assertEqual(weights, first[0])
        gloo = run(3, train, backend="gloo")[0]
        for ours, theirs in zip(first[0], gloo):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))

    def test_runs_hooks(self):
        ours = run(2, train_with_hook)
        self.assertEqual(ours[0], ours[1])
        self.assertEqual(ours, run(2, train_with_hook, backend="gloo"))


class Failures(unittest.TestCase):
    def check_death(self, function, *arguments):
        with ranks.tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "death")
            arguments = [os.path.join(folder, one) if one == "over" else one for one in arguments]
            told = run(3, function, file, *arguments, killed=(1,))
        for text, seconds in (told[0], told[2]):
            self.assertIn("rank 1", text)
            self.assertLess(seconds, SOON)

    def test_a_killed_peer_is_named_at_once(self):
        for is_async in (False, True):
            self.check_death(reduce_with_the_dead, is_async)
        self.check_death(receive_from_the_dead)
        self.check_death(train_with_the_dead)

    def test_so_is_one_on_another_node_that_leaves_a_forked_child_behind(self):
        self.check_death(leave_a_child_behind, "over")

    def test_different_calls_are_errors_on_every_rank(self):
        for what in ("size", "type", "operation", "collective", "root"):
            for first, second in run(2, call_differently, what):
                self.assertIn("the ranks disagree: rank 0 called", first)
                self.assertIn("the group has ended", second)

    def test_a_timeout_names_the_absent_rank(self):
        told, other = run(2, wait_too_long)
        self.assertIn("monitoredBarrier", told)
        self.assertIn("rank 1 did not arrive", told)
        self.assertIsNone(other)

    def test_any_thread_aborts(self):
        for told in run(2, abort_from_a_thread):
            self.assertIn("abort() was called", told)

    def test_a_forked_child_leaves_the_group_to_its_parent(self):
        self.assertEqual(run(2, fork_and_end), [True] * 2)

    def test_a_group_is_closed_during_a_call(self):
        told, other = run(2, close_during_a_call)
        self.assertIn("the process group was destroyed", told[0])
        self.assertEqual(other, [])


class Forming(unittest.TestCase):
    def test_in_threads_over_one_store(self):
        self.assertEqual(run(2, form_groups_in_threads), [True] * 2)

    def test_an_interrupt_is_raised(self):
        self.assertEqual(run(1, interrupt_forming), [True])

    def test_another_version_of_ddprun_is_one_line_on_every_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            for told in run(2, meet_another_version, folder + "/store"):
                self.assertRegex(told, r"read the address of rank [01]: it was not written by this "
                                       r"version of ddprun \(install the same one on all hosts\)$")
                self.assertNotIn("\n", told)

    def test_a_group_is_not_reconfigured(self):
        for can, *told in run(2, ask_to_reconfigure):
            self.assertIs(can, False)
            self.assertEqual(len(told), 3)
            for text in told:
                self.assertRegex(text, "^the backend ddprun cannot reconfigure a group \\(.*\\)$")

    def test_the_address_leaves_the_host_unless_the_master_is_loopback(self):
        found, is_in_range = run(1, own_addresses)[0]
        self.assertEqual(found, {"node0": "", "127.0.0.1": "127.0.0.1",
                                 "localhost": "127.0.0.1"})
        self.assertTrue(is_in_range)


class Loading(unittest.TestCase):
    def test_torch_is_not_imported(self):
        self.assertEqual(output_of("import sys, ddprun; print('torch' in sys.modules)"), "False\n")

    def test_a_missing_library_is_one_line(self):
        said = output_of(
            "import torch, ddprun, torch.distributed as dist\n"
            "try: dist.init_process_group('ddprun', store=dist.HashStore(), rank=0, world_size=1)\n"
            "except ImportError as error: print(error)", DDPRUN_CPU_LIBRARY="/missing.so")
        self.assertRegex(said, r"^the library of the backend ddprun cannot be loaded: "
                               r"/missing.so: .*DDPRUN_CPU_LIBRARY\)\n$")

    def test_without_a_launcher_pytorch_names_the_missing_variable_in_one_line(self):
        said = output_of(
            "import ddprun, torch.distributed as dist\n"
            "try: dist.init_process_group('ddprun')\n"
            "except ValueError as error: print(error)", RANK="", WORLD_SIZE="")
        self.assertRegex(said, "^[^\n]*environment variable RANK expected, but not set\n$")

    def test_an_old_pytorch_is_refused(self):
        said = output_of(
            "import torch, ddprun, torch.distributed as dist\n"
            "torch.__version__ = type(torch.__version__)('2.0.1+cpu')\n"
            "try: dist.init_process_group('ddprun', store=dist.HashStore(), rank=0, world_size=1)\n"
            "except RuntimeError as error: print(error)")
        self.assertEqual(
            said, "the backend ddprun needs PyTorch 2.1 or newer, this is 2.0.1+cpu\n")

    def test_a_store_without_check_is_asked_for_keys(self):
        from ddprun import _process_group

        with tempfile.TemporaryDirectory() as folder:
            for store in (dist.HashStore(), dist.FileStore(folder + "/store", 1)):
                old = types.SimpleNamespace(compare_set=store.compare_set)
                for _ in range(2):  # the first one has set nothing
                    self.assertFalse(_process_group._has(old, "key"))
                store.set("key", b"value")
                self.assertTrue(_process_group._has(old, "key"))
                self.assertEqual(store.get("key"), b"value")


if __name__ == "__main__":
    ranks.use_library()
    unittest.main()
