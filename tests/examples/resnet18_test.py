"""Compares examples/resnet18.py, which uses PyTorch's DistributedDataParallel, with resnet18.

From the same weights and batches both have the same losses. Both print the same kind of figures
for benchmarks/training.py.

Usage: resnet18_test.py BIN_DIR
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop())
TWIN = pathlib.Path(__file__).parents[2] / "examples/resnet18.py"
SMALL = ("--width=4", "--batch-size=8")


def run(workers, program, *options):
    """The job's exit code, output and errors, without ddprun's prefixes."""
    done = subprocess.run([BIN / "ddprun", "--standalone", f"--nproc-per-node={workers}", program,
                           *options], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable})
    return done.returncode, *(stream.replace("[rank 0] ", "")
                              for stream in (done.stdout, done.stderr))


class Resnet18(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def output_of(self, *job):
        code, output, errors = run(*job)
        self.assertEqual(code, 0, output + errors)
        return output

    def record(self, workers, batch_norm):
        """A comparison in C++, and what it wrote down for PyTorch's side."""
        self.output_of(workers, BIN / "resnet18", "--compare", f"--record={self.folder}",
                       "--steps=8", "--warmup=2", f"--batch-norm={batch_norm}", *SMALL)
        return json.loads((self.folder / "run.json").read_text())

    def test_pytorch_has_the_same_losses_from_the_same_weights(self):
        losses = self.record(2, "plain")["averagings"]["ddp"]["losses"]
        self.assertEqual(len(losses), 10)
        self.assertLess(losses[-1], losses[0])
        output = self.output_of(2, TWIN, f"--compare-with={self.folder}")
        self.assertRegex(output,
                         rf"pytorch +{losses[0]:.4f} +{losses[-1]:.4f} +\d+\.\d\d +\d+\.\d\d\n")
        self.assertIn("losses: the same bits in all 10 steps\n", output)

    def test_other_losses_are_seen(self):
        recorded = self.record(1, "plain")
        recorded["averagings"]["ddp"]["losses"][3] += 0.25
        (self.folder / "run.json").write_text(json.dumps(recorded))
        self.assertIn("losses: apart by at most 0.25\n",
                      self.output_of(1, TWIN, f"--compare-with={self.folder}"))

    def test_a_run_that_cannot_be_compared_is_refused_in_a_line(self):
        recorded = self.record(1, "sync")
        for change, words in (({}, "the other run had --batch-norm=sync"),
                              ({"batch_norm": "plain", "workers": 2},
                               "1 workers, but the other run had 2")):
            (self.folder / "run.json").write_text(json.dumps(recorded | change))
            code, _, errors = run(1, TWIN, f"--compare-with={self.folder}")
            self.assertEqual(code, 1)
            self.assertIn("resnet18.py: " + words, errors)
            self.assertNotIn("Traceback", errors)

    def test_both_say_where_the_time_goes(self):
        keys = []
        for program in (BIN / "resnet18", TWIN):
            output = self.output_of(2, program, "--breakdown", "--batch-norm=plain", "--steps=3",
                                    "--warmup=1", *SMALL)
            found = json.loads(output.splitlines()[-1])
            self.assertGreater(found["samples_per_second"], 0)
            for phase in ("data", "forward", "backward", "optimizer"):
                self.assertGreater(found["breakdown_ms"][phase], 0)
            keys.append(sorted(found["breakdown_ms"]))
        self.assertEqual(keys[0], keys[1])
        self.assertIn("exposed_communication", keys[0])

    def test_pytorch_trains_alone(self):
        output = self.output_of(1, TWIN, "--epochs=2", "--width=4")
        self.assertRegex(output,
                         r"epoch  1  accuracy 0\.\d{4}  loss \d\.\d{4}  samples/s \d+\nepoch  2 ")


if __name__ == "__main__":
    unittest.main()
