"""Tests that collectives of Python programs are recorded: ddprun flight, and verdicts of hangs."""
import ctypes
import json
import os
import shutil
import time
import types
import unittest
import unittest.mock

import frame
import needs

from ddprun import _flight, _registration

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


# A script that knows nothing of ddprun. It reports its steps by the page itself: without any, it
# would not be watched.
PLAIN = """
    import mmap, os, struct, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    offset, path = os.environ["DDPRUN_WORKER_PAGE"].split("@", 1)
    page = mmap.mmap(os.open(path, os.O_RDWR), 4096, offset=int(offset))
    struct.pack_into("<q", page, 16, 1)
    struct.pack_into("<Q", page, 8, 1)
    if rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(100))
"""


@unittest.skipUnless(shutil.which("py-spy") or shutil.which("gdb"), "neither py-spy nor gdb")
class Stacks(frame.Test):
    """Hangs of scripts whose calls are not recorded: the stacks of a real debugger decide."""

    def test_the_rank_that_is_not_in_gloo_is_blamed(self):
        said = self.job(["--nproc-per-node=2", "--hang-timeout=2", self.script(PLAIN)]).end(71)
        # py-spy shows the line of the script, gdb the function in which Python's call waits.
        self.assertRegex(said, r"first failure: rank 1 \(.*\) hangs: it has not come to "
                               r"(torch\.distributed\.|c10d::)\S+, where rank 0 has waited ")
        self.assertRegex(said, r"\n *ddprun: error: +\| .*(sleep|<module>)")


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
        self.addCleanup(setattr, _flight, "_worlds", _flight._worlds)
        self.addCleanup(setattr, _flight, "_world_began", _flight._world_began)
        self.engine = Engine()
        self.status = {}
        self.entries = []
        self.readings = 0
        self.moves = []
        self.pair = _flight.number_of("1")
        world, pair = "a group", "another one"
        self.world = types.SimpleNamespace(
            default_pg=world, pg_names={world: "0", pair: "1"},
            pg_group_ranks={world: {0: 0, 1: 1, 2: 2}, pair: {1: 0, 2: 1}})
        self.source = _flight._Source(types.SimpleNamespace(_world=self.world), self.engine,
                                      self.dump, lambda: self.moves.append(True))

    def dump(self, with_entries):
        self.readings += with_entries
        return json.dumps({"pg_status": self.status,
                           **({"entries": self.entries} if with_entries else {})})

    def call(self, name, number, ended, group=0):
        """Makes a collective. PyTorch's status has another number: messages count, too."""
        self.entries.append({
            "pg_id": group, "process_group": [str(group), ""], "profiling_name": name,
            "retired": ended, "op_id": number + 7, "collective_seq_id": number,
            "time_created_ns": time.time_ns(), "input_sizes": [[3, 2]], "input_dtypes": ["Half"]})
        of_group = self.status.setdefault(str(group), {"last_completed_collective": "0"})
        of_group["last_enqueued_collective"] = str(number + 7)
        if ended:
            of_group["last_completed_collective"] = str(number + 7)

    def end_call(self, group=0):
        of_group = self.status[str(group)]
        of_group["last_completed_collective"] = of_group["last_enqueued_collective"]
        for entry in self.entries:
            entry["retired"] = entry["retired"] or entry["pg_id"] == group

    def look(self, stands=0.0):
        """Looks once. stands: seconds after the last look."""
        for group in self.source._groups.values():
            group._since -= stands
        self.source.look()

    def open_calls(self):
        return [call[:3] for call in self.engine.calls if not call[-1]]

    def test_a_collective_is_in_progress_while_it_stands_still(self):
        self.call("gloo:all_reduce", 1, ended=True)
        self.look()
        self.assertEqual(self.engine.calls, [[0, 1, 1, 6, 12, -1, True]])
        for number in (2, 3):
            self.call("gloo:all_gather", number, ended=False)
        self.look()
        self.assertEqual(self.open_calls(), [])
        for _ in range(3):
            self.look(stands=2)
        self.assertEqual(self.engine.calls[1:], [[0, 1, 1, 6, 12, -1, True],
                                                 [0, 2, 4, 6, 12, -1, False]])
        self.assertEqual(self.readings, 2)
        self.end_call()
        self.look()
        self.assertEqual(self.open_calls(), [])

    def test_the_call_of_a_healthy_program_ends_at_the_next_look(self):
        for number in range(1, 9):
            self.call("gloo:all_reduce", number, ended=False)
            self.look()
            self.look(stands=2)
            self.assertEqual(self.open_calls(), [[0, number, 1]])
            self.end_call()
            self.look()
            self.assertEqual(self.open_calls(), [])
        self.assertEqual(len(self.moves), 16)

    def test_a_program_whose_groups_move_is_not_read(self):
        for number in range(1, 50):
            self.call("gloo:all_reduce", number, ended=False)
            self.look(stands=100)
            self.end_call()
            self.look(stands=100)
        self.assertEqual(self.readings, 1)  # the first look

    def test_a_slow_reading_comes_after_a_long_wait(self):
        self.call("gloo:all_reduce", 1, ended=True)
        self.look()
        self.source._cost = 0.3
        self.call("gloo:all_reduce", 2, ended=False)
        self.look()
        self.look(stands=4)
        self.assertEqual(self.readings, 1)
        self.look(stands=4)
        self.assertEqual((self.readings, self.open_calls()), (2, [[0, 2, 1]]))
        self.source._cost = 0.3
        self.end_call()
        self.look()
        self.look(stands=25)
        self.assertEqual(self.readings, 2)
        self.look(stands=25)
        self.assertEqual(self.readings, 3)

    def test_the_newest_record_of_several_groups_is_that_of_the_world(self):
        self.call("gloo:all_reduce", 1, ended=True)
        self.call("gloo:all_reduce", 4, ended=True, group=1)
        self.look()
        self.assertEqual(self.engine.calls, [[self.pair, 4, 1, 6, 12, -1, True],
                                             [0, 1, 1, 6, 12, -1, True]])
        self.assertEqual(self.engine.groups, [(self.pair, b"1", [1, 2])])

    def test_calls_between_two_looks_at_the_recorder_are_left_for_the_next_one(self):
        self.call("gloo:all_reduce", 1, ended=True)
        read = self.source._dump

        def dump(with_entries):
            if with_entries and self.readings == 0:
                self.call("gloo:all_reduce", 2, ended=False)
            return read(with_entries)

        self.source._dump = dump
        self.look()
        self.assertEqual(self.engine.calls, [])
        for _ in range(3):
            self.look(stands=2)
        self.assertEqual(self.open_calls(), [[0, 2, 1]])

    def test_calls_of_other_backends_are_not_recorded(self):
        self.call("nccl:all_reduce", 1, ended=False)
        for _ in range(3):
            self.look(stands=2)
        self.assertEqual(self.engine.calls, [])

    def stand_still(self):
        self.call("gloo:all_reduce", 1, ended=False)
        self.look()
        self.look(stands=2)
        self.assertEqual(self.open_calls(), [[0, 1, 1]])

    def test_a_group_that_is_destroyed_has_no_call_in_progress(self):
        self.stand_still()
        self.world.pg_names.clear()
        for _ in range(2):
            self.look(stands=2)
            self.assertEqual(self.open_calls(), [])

    def test_nor_has_one_of_a_former_world(self):
        self.stand_still()
        _flight.begin_world()
        for _ in range(2):
            self.look(stands=2)
            self.assertEqual(self.open_calls(), [])

    def test_entries_of_a_former_world_are_not_taken_for_those_of_the_new_one(self):
        self.call("gloo:all_reduce", 9, ended=True)
        _flight.begin_world()
        for _ in range(2):
            self.look(stands=2)
        self.assertEqual(self.engine.calls, [])

    def test_no_call_stays_in_progress_when_the_thread_ends(self):
        for ends_with_error in (True, False):
            with self.subTest(ends_with_error=ends_with_error):
                self.setUp()
                self.stand_still()
                if ends_with_error:
                    self.source._dump = lambda _: "another form"
                watcher = _flight._Watcher(self.source)
                with unittest.mock.patch.object(_flight, "_PERIOD", 0.001):
                    watcher.start()
                    if ends_with_error:
                        watcher.join(30)
                    watcher.stop()
                self.assertFalse(watcher.is_alive())
                self.assertEqual(self.open_calls(), [])

    def test_a_second_world_has_a_number_of_its_own(self):
        numbers = []
        for _flight._worlds in (1, 2, 3):
            numbers.append((_flight.number_of_world(), _flight.number_of("1")))
        self.assertEqual(numbers[0][0], 0)
        self.assertEqual(len({one for both in numbers for one in both}), 6)


class Worlds(unittest.TestCase):
    """Which groups count as a world: the numbers of groups must be the same on all ranks."""

    def setUp(self):
        self.addCleanup(setattr, _flight, "_worlds", _flight._worlds)
        _flight._worlds = 0
        watch = unittest.mock.patch.object(_flight, "watch")
        watch.start()
        self.addCleanup(watch.stop)
        self.is_initialized = False

    def follow(self, make=lambda *_: "a group"):
        module = types.SimpleNamespace(
            _new_process_group_helper=make, is_initialized=lambda: self.is_initialized,
            get_rank=lambda: 0, get_world_size=lambda: 2)
        _registration._follow_groups(module)
        return module._new_process_group_helper

    def test_only_the_group_of_init_process_group_is_one(self):
        make = self.follow()
        make(2, 0, [])
        self.assertEqual(_flight._worlds, 1)
        self.is_initialized = True
        make(2, 0, [0, 1])
        make(3, 0, [])  # as programs do on some ranks, for a group with other processes
        self.assertEqual(_flight._worlds, 1)

    def test_one_that_was_not_formed_does_not_count(self):
        with self.assertRaises(ZeroDivisionError):
            self.follow(lambda *_: 1 / 0)(2, 0, [])
        self.assertEqual(_flight._worlds, 0)

    def test_one_from_before_the_import_counts(self):
        self.is_initialized = True
        self.follow()
        self.assertEqual(_flight._worlds, 1)


if __name__ == "__main__":
    frame.main()
