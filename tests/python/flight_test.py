"""Tests that collectives of Python programs are recorded: ddprun flight, and verdicts of hangs."""
import ctypes
import json
import os
import time
import types
import unittest

import frame
import needs

from ddprun import _flight

needs.module("torch", "; scripts/setup --tests installs it into .venv")

LIBRARY = str(frame.BIN.parent / "lib" / "libddprun_cpu.so")

SKIPS_A_COLLECTIVE = """
    import os, sys, time
    import ddprun, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    rank = dist.get_rank()
    pair = dist.new_group([1, 0])
    ones = torch.ones(4)
    dist.broadcast(ones, 1)
    dist.all_reduce(ones, dist.ReduceOp.MAX, group=pair)
    dist.all_reduce(ones, async_op=True).wait()
    if rank == 0:
        dist.send(ones, 1, tag=5)
        dist.all_reduce(torch.ones(100))
    else:
        dist.recv(ones, 0, tag=5)
        print("skipped", flush=True)
        time.sleep(1000)
"""


class Flight(frame.Test):
    def start(self, *options: str, backend: str) -> frame.Job:
        for debugger in ("gdb", "py-spy"):  # real ones take seconds
            self.script("#!/bin/sh\nexit 1\n", debugger).chmod(0o755)
        return self.job(["--nproc-per-node=2", "--rdzv-id=recorded", *options,
                         self.script(SKIPS_A_COLLECTIVE), backend], DDPRUN_CPU_LIBRARY=LIBRARY,
                        PATH=f"{self.folder}:{os.environ['PATH']}")

    def test_a_hang_names_the_rank_and_the_collective_that_it_skips(self):
        said = self.start("--hang-timeout=1", backend="ddprun").end(71)
        self.assertRegex(said, r"first failure: rank 1 \(.*\) hangs: it has not come to all_reduce "
                               r"of 400 bytes \(sum of float32\) \(collective 3\), where rank 0 ")

    def test_so_does_one_of_gloo(self):
        said = self.start("--hang-timeout=2", backend="gloo").end(71)
        self.assertRegex(said, r"first failure: rank 1 \(.*\) hangs: it has not come to all_reduce "
                               r"of 400 bytes of float32 \(collective 3\), where rank 0 ")
        self.assertRegex(said, r"  rank 1: in no collective; the last one was 2[;,]")

    def test_the_calls_of_a_running_job_are_shown(self):
        job = self.start(backend="ddprun")
        job.read_until("skipped")
        shown = json.loads(frame.run([frame.DDPRUN, "flight", "--json", "recorded"]))
        facts = ("call", "collective", "bytes", "dtype", "op", "peer", "tag")
        self.assertEqual(
            [[call.get(name) for name in facts] for call in shown["ranks"][1]["calls"]],
            [["broadcast", 1, 16, "float32", None, 1, None],
             ["all_reduce", 1, 16, "float32", "max", None, None],
             ["all_reduce", 2, 16, "float32", "sum", None, None],
             ["recv", 2, 16, None, None, 0, 5]])
        self.assertTrue(all("ended_ns" in call for call in shown["ranks"][1]["calls"]))
        groups = [rank["groups"][0] for rank in shown["ranks"]]
        self.assertEqual(groups[0], groups[1])
        self.assertEqual(groups[0]["ranks"], [0, 1])
        self.assertEqual(groups[0]["id"], shown["ranks"][1]["calls"][1]["group"])


class Engine:
    """Takes the place of the library. Keeps the calls that it is told, with whether they ended."""

    c_int = ctypes.c_int

    def __init__(self):
        self.groups = []
        self.calls = []

    def flight_group(self, number, name, ranks, size):
        self.groups.append((number, name, list(ranks)))

    def flight_begin(self, *facts):
        self.calls.append([*facts[:6], False])
        return len(self.calls)

    def flight_end(self, number):
        self.calls[number - 1][-1] = True


class Sources(unittest.TestCase):
    """What is read from PyTorch's recorder, whose place a function of the test takes."""

    def setUp(self):
        self.engine = Engine()
        self.status = {}
        self.entries = []
        self.readings = 0
        self.before_entries = lambda: None
        world, pair = "a group", "another one"
        module = types.SimpleNamespace(_world=types.SimpleNamespace(
            default_pg=world, pg_names={world: "0", pair: "1"},
            pg_group_ranks={world: {0: 0, 1: 1, 2: 2}, pair: {1: 0, 2: 1}},
            pg_backend_config={world: "cuda:nccl", pair: "cpu:gloo,cuda:nccl"}))
        self.module = module
        self.source = _flight._Source(module, self.engine, self.dump)

    def dump(self, with_entries):
        self.readings += with_entries
        if with_entries:
            self.before_entries()
        return json.dumps({"pg_status": self.status,
                           **({"entries": self.entries} if with_entries else {})})

    def call(self, name, number, ended, group=0, shapes=((3, 2),), dtype="Half"):
        self.entries.append({
            "pg_id": group, "record_id": len(self.entries), "process_group": [str(group), ""],
            "profiling_name": name, "retired": ended, "collective_seq_id": number, "op_id": number,
            "time_created_ns": 1, "input_sizes": shapes, "input_dtypes": [dtype] * len(shapes)})
        of_group = self.status.setdefault(str(group), {"last_completed_collective": "0"})
        of_group["last_enqueued_collective"] = str(number)
        if ended:
            of_group["last_completed_collective"] = str(number)

    def test_calls_in_progress_and_the_last_one_of_a_group_are_recorded(self):
        for number in (1, 2):
            self.call("nccl:all_reduce", number, ended=True)
        self.call("nccl:_all_gather_base", 3, ended=False)
        self.call("nccl:recv 1<-0", 0, ended=False, group=1)
        self.source.look()
        (pair, name, ranks), = self.engine.groups
        self.assertEqual((name, ranks), (b"1:nccl", [1, 2]))
        self.assertEqual(self.engine.calls, [
            [0, 2, 1, 6, 12, -1, True], [0, 3, 4, 6, 12, -1, False],
            [pair, 0, 10, 6, 12, 1, False]])

    def test_a_call_ends_with_its_entry_or_when_later_ones_have_completed(self):
        self.call("gloo:barrier", 1, ended=False, shapes=())
        self.source.look()
        self.assertEqual(self.engine.calls, [[0, 1, 8, 0, 0, -1, False]])
        self.source._next = time.monotonic() + 1000  # the entries are not read again
        self.status["0"]["last_completed_collective"] = "1"
        self.source.look()
        self.assertEqual(self.engine.calls, [[0, 1, 8, 0, 0, -1, True]])
        self.source._next = 0
        self.entries[0]["retired"] = True
        self.call("gloo:barrier", 2, ended=True, shapes=())
        self.source.look()
        self.assertEqual(self.engine.calls[1:], [[0, 2, 8, 0, 0, -1, True]])

    def test_a_call_that_began_during_the_look_goes_on(self):
        self.call("gloo:barrier", 1, ended=True, shapes=())
        self.before_entries = lambda: self.call("gloo:barrier", 2, ended=False, shapes=())
        self.source.look()
        self.before_entries = lambda: None
        for _ in range(2):
            self.source.look()
        self.assertEqual(self.engine.calls[1], [0, 2, 8, 0, 0, -1, False])

    def test_calls_end_with_their_group_and_with_the_recorder(self):
        for end in (lambda: self.module._world.pg_names.clear(),
                    lambda: setattr(self, "status", None)):
            self.setUp()
            self.call("gloo:barrier", 1, ended=False, shapes=())
            self.source.look()
            self.assertFalse(self.engine.calls[0][-1])
            end()
            watcher = _flight._Watcher([self.source])
            watcher._has_ended.wait = lambda _, ends=iter([False, True]): next(ends)
            watcher.run()
            self.assertTrue(self.engine.calls[0][-1])

    def test_entries_are_read_only_after_a_change(self):
        for _ in range(3):
            self.source.look()
        self.assertEqual(self.readings, 0)
        self.call("gloo:broadcast", 1, ended=True)
        for _ in range(3):
            self.source.look()
        self.assertEqual(self.readings, 1)

    def test_a_second_world_has_a_number_of_its_own(self):
        before = _flight._worlds
        self.addCleanup(setattr, _flight, "_worlds", before)
        numbers = []
        for _flight._worlds in (1, 2, 3):
            numbers.append((_flight.number_of_world(), _flight.number_of("1")))
        self.assertEqual(numbers[0][0], 0)
        self.assertEqual(len({one for both in numbers for one in both}), 6)


if __name__ == "__main__":
    frame.main()
