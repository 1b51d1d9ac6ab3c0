"""Tests ddprun.Environment, under ddprun and with variables of our own."""
import dataclasses
import json
import sys

import frame

import ddprun

OF_A_WORKER = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29501",
    "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "DDPRUN_GENERATION": "5", "DDPRUN_CHECKPOINT_SIGNAL": "10"}


class Environment(frame.Test):
    def test_without_a_launcher_it_is_a_world_of_one(self):
        alone = ddprun.Environment.from_env({})
        self.assertEqual(alone, ddprun.Environment())
        self.assertEqual((alone.rank, alone.world_size, alone.launched), (0, 1, False))

    def test_it_has_what_the_launcher_has_set(self):
        worker = ddprun.Environment.from_env(OF_A_WORKER)
        self.assertEqual(worker, ddprun.Environment(
            rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1, node_count=2,
            master_addr="10.0.0.7", master_port=29501, agent_store=True, restart_count=2,
            max_restarts=3, run_id="train", generation=5, checkpoint_signal=10, launched=True))

    def test_under_a_stock_torchrun_the_rest_is_that_of_one_node(self):
        worker = ddprun.Environment.from_env(
            {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"})
        self.assertEqual((worker.local_rank, worker.local_world_size, worker.node_rank,
                          worker.node_count, worker.generation), (1, 2, 0, 1, 1))

    def test_an_error_names_the_variable(self):
        for changed, expected in [
                ({"RANK": "4"}, "RANK: invalid value '4' (expected an integer from 0 to 3)"),
                ({"WORLD_SIZE": "x"},
                 "WORLD_SIZE: invalid value 'x' (expected an integer from 1 to 16777216)"),
                ({"LOCAL_RANK": " 1"},
                 "LOCAL_RANK: invalid value ' 1' (expected an integer from 0 to 1)"),
                ({"MASTER_PORT": "65536"},
                 "MASTER_PORT: invalid value '65536' (expected an integer from 1 to 65535)"),
                ({"DDPRUN_CHECKPOINT_SIGNAL": "0"},
                 "DDPRUN_CHECKPOINT_SIGNAL: invalid value '0' (expected an integer from 1 to 31)")]:
            with self.assertRaises(ValueError) as caught:
                ddprun.Environment.from_env(OF_A_WORKER | changed)
            self.assertEqual(str(caught.exception), f"read environment variable {expected}")
        with self.assertRaises(ValueError) as caught:
            ddprun.Environment.from_env({"RANK": "0"})
        self.assertEqual(str(caught.exception), "read environment variable WORLD_SIZE: not set, "
                         "although other variables of the launcher are")

    def test_a_worker_of_ddprun_reads_its_place_and_its_restarts(self):
        script = self.script("""
            import dataclasses, json, os, ddprun
            here = ddprun.Environment.current()
            print(json.dumps(dataclasses.asdict(here) | {
                "functions": [ddprun.generation(), ddprun.restart_count()],
                "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}))
            if here.generation == 0:
                raise SystemExit(1)
        """)
        said = self.job(["--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=train", "--quiet",
                         "--local-ranks-filter=1", "--checkpoint-signal=USR1", script]).end()
        told = [json.loads(line[line.index("{"):]) for line in said.splitlines() if "{" in line]
        worker = told[-1]
        self.assertEqual(worker["functions"], [1, 1])
        self.assertEqual(worker["master"], f"{worker['master_addr']}:{worker['master_port']}")
        for name, value in {"rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2,
                            "node_rank": 0, "node_count": 1, "generation": 1, "restart_count": 1,
                            "max_restarts": 1, "run_id": "train", "agent_store": True,
                            "checkpoint_signal": 10, "launched": True}.items():
            self.assertEqual(worker[name], value, name)
        self.assertRegex(worker["page"], r"^\d+@/proc/\d+/fd/\d+$")
        self.assertTrue(worker["error_file"] and worker["submission"])
        self.assertEqual(set(worker) - {"functions", "master"},
                         {field.name for field in dataclasses.fields(ddprun.Environment)})

    def test_where_another_launcher_has_set_half_of_it_no_report_fails(self):
        frame.run([sys.executable, "-c", "import ddprun; ddprun.report_progress(1); "
                   "ddprun.report_activity(); assert not ddprun.save_requested(); "
                   "ddprun.announce_checkpoint(1); ddprun.long_wait()"],
                  env=frame.environment(RANK="x"))

    def test_where_no_launcher_is_no_call_takes_more_than_some_microseconds(self):
        """1 us on an idle machine. The limit is for a busy one."""
        said = frame.run([sys.executable, "-c", """
import time, ddprun
def wait():
    with ddprun.long_wait():
        pass
for call in (lambda: ddprun.report_progress(7), ddprun.report_activity, wait, ddprun.generation,
             ddprun.restart_count, ddprun.save_requested, lambda: ddprun.announce_checkpoint(7)):
    call()
    best = 1.0
    for _ in range(200):
        begin = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - begin) / 100)
    print(best)
"""])
        for line in said.splitlines():
            self.assertLess(float(line), 5e-6)


frame.main()
