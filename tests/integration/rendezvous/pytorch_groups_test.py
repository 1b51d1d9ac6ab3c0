#!/usr/bin/env python3
"""Tests PyTorch's process groups over gloo that form through ddp-store, as its users use them.

    pytorch_groups_test.py BIN_DIR [unittest arguments]

Each rank is a process. Needs torch and numpy; exits with 77 (skipped) without them.
"""

import contextlib
import datetime
import os
import sys
import tempfile
import traceback
import unittest

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch", "; scripts/setup --tests installs it into .venv")
needs.module("numpy", "; scripts/setup --tests installs it into .venv")  # object collectives use it

import pytorch_clients
import torch
from pytorch_clients import WAIT, connect, dist, processes, pytorch_store

# Imports of a rank happen before it is forked. A PyTorch that lacks some of them skips those.
processes.set_forkserver_preload(
    ["torch", "torch.distributed.checkpoint", "torch.distributed.device_mesh",
     "torch.distributed.tensor"])

BIN = ""  # given on the command line
PATIENCE = 60  # seconds, for the work of the slowest rank
SHORT = datetime.timedelta(seconds=4)


def ddp_store():
    return pytorch_clients.ddp_store(BIN)


# --- the work of a rank in its process group; returns the values that the test checks ---


def reduce_in_groups(rank, world):
    one = torch.full((3,), float(rank + 1))
    dist.all_reduce(one)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    two = torch.full((2,), float(rank))
    dist.all_reduce(two, group=pairs[rank // 2])
    even = dist.new_group(list(range(0, world, 2)))
    three = torch.tensor([float(rank)])
    if rank % 2 == 0:
        dist.all_reduce(three, op=dist.ReduceOp.MAX, group=even)
    dist.monitored_barrier(timeout=WAIT)
    dist.barrier()
    return one.tolist(), two.tolist(), three.tolist()


def objects_of(rank):
    return {"rank": rank, "bytes": bytes([rank]) * 3000 * rank,
            "nested": [(rank, None), {"a": {1, 2}}]}


def exchange_objects(rank, world):
    gathered = [None] * world
    dist.all_gather_object(gathered, objects_of(rank))
    broadcast = [objects_of(7), "text"] if rank == 1 else [None, None]
    dist.broadcast_object_list(broadcast, src=1)
    scattered = [None]
    dist.scatter_object_list(scattered,
                             [objects_of(i) for i in range(world)] if rank == 0 else None, src=0)
    collected = [None] * world if rank == world - 1 else None
    dist.gather_object(objects_of(rank), collected, dst=world - 1)
    return gathered, broadcast, scattered, collected


def miss_a_barrier(rank, world):
    """The last but one rank misses the barrier until the others have given up."""
    missing = world - 2
    if rank != missing:
        try:
            dist.monitored_barrier(timeout=SHORT, wait_all_ranks=True)
            told = "it passed"
        except RuntimeError as error:
            told = str(error)
        dist.distributed_c10d._get_default_store().set(f"told {rank}", "yes")
        return told
    others = [f"told {other}" for other in range(world) if other != missing]
    dist.distributed_c10d._get_default_store().wait(others, WAIT)
    return "it did not come"


def save_and_load(rank, world, folder):
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def state(scale):
        mesh = init_device_mesh("cpu", (world,))
        rows = torch.arange(8.0 * world).reshape(2 * world, 4)
        return {
            "sharded": distribute_tensor(rows * scale, mesh, [Shard(0)]),
            "replicated": torch.arange(5.0) * scale,
            f"of rank {rank}": torch.full((3,), float(rank)) * scale,
            "step": 7 * scale,
        }

    checkpoint.save(state(1), checkpoint_id=folder)
    loaded = state(0)
    checkpoint.load(loaded, checkpoint_id=folder)
    whole = loaded["sharded"].full_tensor().flatten().tolist()
    mine = loaded["sharded"].to_local().shape
    return (
        whole,
        list(mine),
        loaded["replicated"].tolist(),
        loaded[f"of rank {rank}"].tolist(),
        loaded["step"],
    )


def run_rank(rank, world, port, environment, work, arguments, pipe):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        **environment,
    )
    try:
        if environment.get("TORCH_DISTRIBUTED_DEBUG"):
            dist.set_debug_level_from_env()
        dist.init_process_group("gloo", timeout=WAIT)
        pipe.send((None, work(rank, world, *arguments)))
        pipe.recv()  # no rank leaves before all are done
        dist.destroy_process_group()
    except Exception:
        pipe.send((traceback.format_exc(), None))
        raise


# --- the tests ---


class ProcessGroups(unittest.TestCase):
    maxDiff = None

    def run_world(self, world, port, work, *arguments, meanwhile=None, **environment):
        """Returns the result of each rank. Calls meanwhile() when all have returned and none
        has left."""
        with contextlib.ExitStack() as ends:
            pipes, ranks = [], []
            for rank in range(world):
                ours, theirs = processes.Pipe()
                process = processes.Process(
                    target=run_rank, args=(rank, world, port, environment, work, arguments, theirs)
                )
                process.start()
                ends.callback(process.kill)
                theirs.close()
                pipes.append(ours)
                ranks.append(process)
            results = []
            for rank, pipe in enumerate(pipes):
                self.assertTrue(pipe.poll(PATIENCE), f"rank {rank} says nothing for {PATIENCE} s")
                failure, result = pipe.recv()
                self.assertIsNone(failure, f"rank {rank}:\n{failure}")
                results.append(result)
            if meanwhile:
                meanwhile()
            for pipe in pipes:
                pipe.send("go")
            for process in ranks:
                process.join(PATIENCE)
                self.assertEqual(process.exitcode, 0)
        return results

    def check_reduced(self, world, results):
        last_even = float((world - 1) // 2 * 2)
        for rank, (one, two, three) in enumerate(results):
            self.assertEqual(one, [world * (world + 1) / 2] * 3)
            self.assertEqual(two, [2.0 * (rank - rank % 2) + 1] * 2)
            self.assertEqual(three, [last_even if rank % 2 == 0 else float(rank)])

    def reduced_and_keys(self, world, port, **environment):
        """Returns the keys that the group has left in the store."""
        keys = []
        results = self.run_world(
            world,
            port,
            reduce_in_groups,
            meanwhile=lambda: keys.extend(sorted(connect(port).list_keys())),
            **environment,
        )
        self.check_reduced(world, results)
        return keys

    def same_keys(self, world, key="default_pg/0//cpu//0/0", **environment):
        """key: a key that exists only if the settings in the environment took effect."""
        with ddp_store() as ours, pytorch_store() as theirs:
            got = self.reduced_and_keys(world, ours.port, **environment)
            expected = self.reduced_and_keys(world, theirs, **environment)
        self.assertEqual(ours.log, "")
        self.assertEqual(got, expected)
        self.assertIn(key, got)

    def test_two_ranks(self):
        self.same_keys(2)

    def test_four_ranks(self):
        self.same_keys(4)

    @needs.the_whole
    def test_sixteen_ranks(self):
        with ddp_store() as server:
            keys = self.reduced_and_keys(16, server.port)
        self.assertLess({f"default_pg/0//cpu//0/{rank}" for rank in range(16)}, set(keys))
        self.assertEqual(server.log, "")

    def test_barrier_in_the_store(self):
        key = "default_pg/store_based_barrier_key:0:last_worker"
        self.same_keys(4, key, TORCH_DIST_INIT_BARRIER="1")

    def test_debug_detail(self):
        self.same_keys(2, "default_pg/0//cpu//pg_wrapper:0/0/0", TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_gloo_with_the_extended_store_api(self):
        self.same_keys(2, GLOO_ENABLE_STORE_V2_API="1")

    def test_a_rank_that_misses_the_barrier_is_named(self):
        with ddp_store() as server:
            first, second, missing, last = self.run_world(4, server.port, miss_a_barrier)
        self.assertEqual(first, "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 4000 ms")
        self.assertEqual(missing, "it did not come")
        for told in (second, last):
            self.assertIn("successfully reached monitoredBarrier, but received errors", told)

    def test_objects(self):
        world = 4
        with ddp_store() as server:
            results = self.run_world(world, server.port, exchange_objects)
        everyone = [objects_of(rank) for rank in range(world)]
        for rank, (gathered, broadcast, scattered, collected) in enumerate(results):
            self.assertEqual(gathered, everyone)
            self.assertEqual(broadcast, [objects_of(7), "text"])
            self.assertEqual(scattered, [objects_of(rank)])
            self.assertEqual(collected, everyone if rank == world - 1 else None)

    def test_a_checkpoint_is_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as folder, ddp_store() as server:
            results = self.run_world(2, server.port, save_and_load, folder)
            self.assertEqual(
                sorted(os.listdir(folder)), [".metadata", "__0_0.distcp", "__1_0.distcp"]
            )
        for rank, (whole, shard, replicated, own, step) in enumerate(results):
            self.assertEqual(whole, [float(i) for i in range(16)])
            self.assertEqual(shard, [2, 4])
            self.assertEqual(replicated, [0.0, 1.0, 2.0, 3.0, 4.0])
            self.assertEqual(own, [float(rank)] * 3)
            self.assertEqual(step, 7)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
