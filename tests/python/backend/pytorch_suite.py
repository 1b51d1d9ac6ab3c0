#!/usr/bin/env python3
"""Runs PyTorch's own tests of process groups (DistributedTest) with gloo and with the backend
"ddprun": what passes with gloo must pass, and what gloo does not skip must not be skipped.

    pytorch_suite.py LIBRARY_DIR WORLD_SIZE [unittest arguments]

The suite believes that its backend is gloo, so it runs what it runs for gloo. Each rank is a forked
process. Needs the module expecttest, which the suite uses; exits with 77 (skipped) without it.
"""
import collections
import functools
import os
import shutil
import sys
import tempfile
import unittest

import ranks
from ranks import dist, needs, torch

needs.module("expecttest")
ranks.use_library()
FOLDER = tempfile.mkdtemp()
os.environ.update(BACKEND="gloo", WORLD_SIZE=sys.argv.pop(1), TEMP_DIR=FOLDER, MASTER_PORT="0",
                  MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import torch.testing._internal.common_distributed as common
from torch.testing._internal.distributed import distributed_test

TEST_PATIENCE = 120  # seconds
# Test -> why it cannot pass.
EXCEPTIONS = {
    "test_get_backend": "it asks for the name gloo",
}


def with_ours(function):
    """Returns the function with the backend under test wherever a caller asks for gloo."""

    @functools.wraps(function)
    def call(*args, **named):
        ours = {"gloo": Suite.tested}
        args = [ours.get(one, one) if isinstance(one, str) else one for one in args]
        if named.get("backend") == "gloo":
            named["backend"] = Suite.tested
        return function(*args, **named)

    return call


dist.init_process_group = with_ours(dist.init_process_group)
dist.new_group = with_ours(dist.new_group)


class Suite(distributed_test.TestDistBackend,
            distributed_test.DistributedTest._DistTestBase):
    tested = "gloo"  # a backend

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def outcome(name, backend):
    """Runs a test of the suite. Returns passed, skipped or failed, and the reason."""
    Suite.tested = backend
    result = unittest.TestResult()
    Suite(name).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    if result.wasSuccessful():
        return "passed", ""
    return "failed", (result.errors + result.failures)[0][1]


class PyTorchSuite(unittest.TestCase):
    """Has each test of the suite, with both backends."""

    counts = collections.Counter()

    @classmethod
    def tearDownClass(cls):
        print("\n" + "\n".join(f"{count} {text}" for text, count in sorted(cls.counts.items())))
        passed = cls.counts["passed with gloo, passed with ddprun"]
        if sum(cls.counts.values()) == len(NAMES):  # not when single tests are named
            assert passed > 50, f"only {passed} tests passed with both: the suite does not run"

    def compare(self):
        name = self._testMethodName
        with_gloo, why = outcome(name, "gloo")
        ours, trouble = outcome(name, "ddprun")
        self.counts[f"{with_gloo} with gloo, {ours} with ddprun"] += 1
        if name in EXCEPTIONS:
            self.assertEqual((with_gloo, ours), ("passed", "failed"), "it is not an exception")
            self.skipTest(EXCEPTIONS[name])
        if with_gloo == "skipped":
            self.assertEqual((ours, trouble), (with_gloo, why))
            self.skipTest(why)
        if with_gloo == "failed" and ours != "skipped":
            self.skipTest(f"it fails with gloo: {why}")
        self.assertEqual(ours, "passed", trouble)


NAMES = unittest.TestLoader().getTestCaseNames(Suite)
for name in NAMES:
    setattr(PyTorchSuite, name, PyTorchSuite.compare)


if __name__ == "__main__":
    torch.set_num_threads(1)
    common.TIMEOUT_DEFAULT = TEST_PATIENCE
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(FOLDER, name))
    try:
        unittest.main(defaultTest="PyTorchSuite")
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
