"""Tests that collectives of Python programs are recorded: ddprun flight, and verdicts of hangs."""
import json
import os

import frame
import needs

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
        return self.job(["--nproc-per-node=2", "--rdzv-id=train", *options,
                         self.script(SKIPS_A_COLLECTIVE), backend], DDPRUN_CPU_LIBRARY=LIBRARY,
                        PATH=f"{self.folder}:{os.environ['PATH']}")

    def test_a_hang_names_the_rank_and_the_collective_that_it_skips(self):
        said = self.start("--hang-timeout=1", backend="ddprun").end(71)
        self.assertRegex(said, r"first failure: rank 1 \(.*\) hangs: it has not come to all_reduce "
                               r"of 400 bytes \(sum of float32\) \(collective 3\), where rank 0 ")

    def test_the_calls_of_a_running_job_are_shown(self):
        job = self.start(backend="ddprun")
        job.read_until("skipped")
        shown = json.loads(frame.run([frame.DDPRUN, "flight", "--json", "train"]))
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


if __name__ == "__main__":
    frame.main()
