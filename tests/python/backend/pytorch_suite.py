#!/usr/bin/env python3
"""Runs PyTorch's own tests of process groups (DistributedTest) on the backend "ddprun".

    pytorch_suite.py LIBRARY_DIR WORLD_SIZE [unittest arguments]

The suite believes that its backend is gloo, so it runs what it runs for gloo, and skips no test
that gloo does not skip. Each rank is a forked process. Needs the module expecttest, which the
suite uses; exits with 77 (skipped) without it.
"""
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
    """Returns the function with our backend wherever a caller asks for gloo."""

    @functools.wraps(function)
    def call(*args, **named):
        ours = {"gloo": "ddprun"}
        args = [ours.get(one, one) if isinstance(one, str) else one for one in args]
        if named.get("backend") == "gloo":
            named["backend"] = "ddprun"
        return function(*args, **named)

    return call


dist.init_process_group = with_ours(dist.init_process_group)
dist.new_group = with_ours(dist.new_group)


class PyTorchSuite(distributed_test.TestDistBackend,
                   distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        if self._testMethodName in EXCEPTIONS:
            self.skipTest(EXCEPTIONS[self._testMethodName])
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    torch.set_num_threads(1)
    common.TIMEOUT_DEFAULT = TEST_PATIENCE
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(FOLDER, name))
    try:
        unittest.main()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
