"""examples/chargpt.py takes the steps of chargpt: the same losses, from weights that either wrote.

Usage: chargpt_twin_test.py BIN_DIR
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop())
ROOT = pathlib.Path(__file__).parents[2]
TINY = ["--data", ROOT / "tests/data/chargpt.txt", "--block=16", "--layers=2", "--heads=2",
        "--width=32", "--lr-warmup=5", "--lr=0.01", "--batch-size=600"]
STEPS = ["--steps=18", "--eval-every=3"]  # step 15 begins another epoch


class Twin(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def output_of(self, program, workers, options):
        command = [program, *TINY, *options]
        if workers > 1:
            # PyTorch 2.11 sometimes aborts while it shuts down ("terminate called without an
            # active exception").
            restarts = 3 if program.suffix == ".py" else 0
            command = [BIN / "ddprun", "--standalone", f"--nproc-per-node={workers}",
                       f"--max-restarts={restarts}", *command]
        elif program.suffix == ".py":
            command = [sys.executable, *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False,
                              env=os.environ | {"PYTHON_EXEC": sys.executable,
                                                "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def ours(self, workers, *options):
        return self.output_of(BIN / "chargpt", workers, options)

    def theirs(self, workers, *options):
        return self.output_of(ROOT / "examples/chargpt.py", workers, options)

    def metrics(self, run, workers, *options):
        file = self.folder / "metrics.jsonl"
        file.unlink(missing_ok=True)
        run(workers, *STEPS, f"--metrics={file}", *options)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return lines[-6:]  # a job that was restarted has taken its steps twice

    def expect_same_losses(self, ours, theirs):
        self.assertEqual([line["step"] for line in ours], [3, 6, 9, 12, 15, 18])
        self.assertEqual([line["step"] for line in theirs], [3, 6, 9, 12, 15, 18])
        for mine, other in zip(ours, theirs):
            self.assertEqual(mine.keys(), other.keys())
            for name in ("loss", "val_loss"):
                self.assertAlmostEqual(mine[name], other[name], delta=1e-5,
                                       msg=f"{name} of step {mine['step']}")

    # The weights come from another seed than the runs use. With the same seed the runs would
    # draw the same weights.
    def weights_of(self, run):
        file = self.folder / "weights.pt"
        run(1, "--seed=5", "--steps=1", "--save-init", file)
        return file

    def test_two_workers_of_each_learn_the_same_from_our_weights(self):
        weights = self.weights_of(self.ours)
        self.expect_same_losses(*(self.metrics(run, 2, "--init", weights)
                                  for run in (self.ours, self.theirs)))

    @unittest.skipUnless("DDPRUN_TEST_WHOLE" in os.environ, "two workers of each are the sample")
    def test_one_worker_of_each_learns_the_same_from_its_weights(self):
        weights = self.weights_of(self.theirs)
        self.expect_same_losses(*(self.metrics(run, 1, "--init", weights)
                                  for run in (self.ours, self.theirs)))

    def test_both_measure_the_same_things(self):
        last = [json.loads(run(1, "--breakdown", "--steps=3", "--warmup=1").splitlines()[-1])
                for run in (self.ours, self.theirs)]
        for measured in last:
            self.assertEqual(measured.keys(), {"samples_per_second", "breakdown_ms"})
            self.assertEqual(measured["breakdown_ms"].keys(),
                             {"data", "forward", "backward", "optimizer"})
            milliseconds = sum(measured["breakdown_ms"].values())
            self.assertAlmostEqual(measured["samples_per_second"] * milliseconds / 600_000, 1,
                                   places=6)


if __name__ == "__main__":
    unittest.main()
