#!/usr/bin/env python3
"""Runs cases of PyTorch's own tests of FSDP (FSDPTest) and DTensor (DTensorTestBase) on the backend
"ddprun", on CPUs.

    cases_test.py LIBRARY_DIR [unittest arguments]

Each rank is a forked process. Needs the module expecttest, which those tests use. The ctest of this
name has a sample; the ctest NAME_whole has all cases.
"""
import itertools
import os
import unittest

import ranks
from ranks import dist, needs, torch

needs.module("expecttest", "; scripts/setup --tests installs it into .venv")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch._dynamo  # noqa: F401  FSDP imports it: here once, not in every rank
from torch.distributed.fsdp import ShardingStrategy
from torch.testing._internal import common_fsdp

if not hasattr(common_fsdp, "FSDPTestMixin"):
    needs.skip("this torch is older than its tests of FSDP on CPUs")
from torch.testing._internal.common_fsdp import DEVICEInitMode, FSDPInitMode
from torch.testing._internal.distributed._tensor import common_dtensor

SIZE = 2


def fork_ranks(case):
    case._start_processes(torch.multiprocessing.get_context("fork").Process)


class Fsdp(common_fsdp.FSDPTest):
    """Compares models under FSDP with the same ones under DistributedDataParallel."""

    world_size = SIZE
    _spawn_processes = fork_ranks
    _run = classmethod(common_fsdp.FSDPTestMixin._run.__func__)  # FSDPTest's own counts GPUs

    def compare(self, model, **options):
        self.assertEqual(dist.get_backend(), "ddprun")
        self._test_fsdp_parity(model, FSDPInitMode.RECURSIVE, DEVICEInitMode.DEVICE_BEFORE,
                               device_id=torch.device("cpu"), **options)

    def test_nested_modules(self):
        self.compare(common_fsdp.NestedWrappedModule,
                     sharding_strategy=ShardingStrategy.FULL_SHARD)

    def test_a_transformer_with_shared_parameters(self):
        self.compare(common_fsdp.TransformerWithSharedParams, use_orig_params=True,
                     sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)

    @needs.the_whole
    def test_all_strategies(self):
        strategies = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP,
                      ShardingStrategy.NO_SHARD)
        models = (common_fsdp.NestedWrappedModule, common_fsdp.AlwaysWrapNestedWrappedModule,
                  common_fsdp.TransformerWithSharedParams)
        for model, strategy, original in itertools.product(models, strategies, (False, True)):
            self.compare(model, sharding_strategy=strategy, use_orig_params=original)


class DTensor(common_dtensor.DTensorTestBase):
    """Compares operations on tensors that are sharded in all ways with those on whole ones."""

    world_size = SIZE
    _spawn_processes = fork_ranks

    def init_pg(self, eager_init, backend=None):
        dist.init_process_group("ddprun", init_method=f"file://{self.file_name}", rank=self.rank,
                                world_size=SIZE)

    @common_dtensor.with_comms
    def test_operations(self):
        mesh = self.build_device_mesh()
        torch.manual_seed(0)
        one, other = torch.randn(4, 6), torch.randn(4, 6)
        self._test_op(mesh, torch.add, one, other)
        self._test_op(mesh, torch.matmul, one, other.T.contiguous())
        self._test_op(mesh, torch.sum, one, dim=1)
        self._test_op(mesh, torch.nn.functional.softmax, one, dim=0)
        self._test_op(mesh, torch.nn.functional.layer_norm, one, [6])
        self._test_op(mesh, torch.cat, [one, other], dim=1)

    @needs.the_whole
    @common_dtensor.with_comms
    def test_redistribution(self):
        """Moves a tensor from each placement to each other one."""
        mesh = self.build_device_mesh()
        placements = [common_dtensor.Replicate(), common_dtensor.Shard(0), common_dtensor.Shard(1)]
        for rows, columns in itertools.product((1, 4, 5), (2, 3)):
            whole = torch.arange(float(rows * columns)).reshape(rows, columns)
            for before, after in itertools.product(placements, placements):
                moved = common_dtensor.distribute_tensor(whole, mesh, [before]).redistribute(
                    mesh, [after])
                self.assertEqual(moved.full_tensor(), whole)


if __name__ == "__main__":
    ranks.use_library()
    common_fsdp.DISTRIBUTED_BACKEND = "ddprun"
    torch.set_num_threads(1)
    unittest.main()
