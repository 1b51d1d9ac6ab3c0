#!/usr/bin/env python3
"""Tests groups of "cpu:ddprun,cuda:nccl". A recorder takes the place of NCCL: no GPU is needed.

    hybrid_test.py LIBRARY_DIR [unittest arguments]
"""
import datetime
import types
import unittest
import unittest.mock

import ranks
import torch

from ranks import dist, run
from torch.distributed import distributed_c10d

BACKEND = "cpu:ddprun,cuda:nccl"
ON_GPU = types.SimpleNamespace(is_cuda=True)  # stands for a tensor of a GPU


def use_tensors_of_the_cpu(rank, size):
    """Returns what the group and a group of its own say, and why it takes no tensors of GPUs."""
    one = torch.full((3,), rank + 1.)
    dist.all_reduce(one)
    pair = dist.new_group([0, 1])
    dist.barrier(pair)
    every = [None] * size
    dist.all_gather_object(every, rank, group=pair)
    try:
        dist.group.WORLD._get_backend(torch.device("cuda"))
    except RuntimeError as error:
        return one.tolist(), every, dist.get_backend(), dist.get_backend(pair), str(error)
    raise AssertionError("there is a GPU")


def record_nccl():
    """Puts an object that keeps its calls into the place of the group of NCCL. Returns it."""
    gpus = unittest.mock.create_autospec(dist.ProcessGroup, instance=True)
    dist.group.WORLD._gpus = gpus
    return gpus


def names_of_calls(gpus):
    return [name for name, *_ in gpus.method_calls]


def use_tensors_of_gpus(rank, size):
    """Returns the calls that the group hands to NCCL until it is destroyed."""
    group = dist.group.WORLD
    gpus = record_nccl()
    group.allreduce([ON_GPU])
    group.allgather([[ON_GPU] * size], [ON_GPU])
    group.gather([], [ON_GPU], None)  # not the root
    group._allgather_base(ON_GPU, ON_GPU)
    group.send([ON_GPU], 1 - rank, 0)
    group.barrier(types.SimpleNamespace(device=torch.device("cuda", 0)))
    group._get_backend(torch.device("cuda"))
    devices = [one.type for one in group._device_types]
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    group.set_timeout(datetime.timedelta(seconds=9))
    group.setGroupName("a name")
    group.setGroupDesc("a text")
    group.shutdown()
    return names_of_calls(gpus), devices


def exchange_between_gpus(rank, size):
    """Returns the calls that NCCL gets from a batch of messages."""
    gpus = record_nccl()
    with unittest.mock.patch.object(distributed_c10d, "_check_p2p_op_list"):
        tensor = unittest.mock.create_autospec(torch.Tensor, instance=True)
        tensor.is_cuda, tensor.device = True, torch.device("cuda", 0)
        with unittest.mock.patch.object(distributed_c10d, "_check_single_tensor"):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, 1 - rank),
                                    dist.P2POp(dist.irecv, tensor, 1 - rank)])
    return names_of_calls(gpus)


class Hybrid(unittest.TestCase):
    def test_tensors_of_the_cpu_go_through_ddprun_and_others_are_refused_in_one_line(self):
        for reduced, every, name, other, why in run(2, use_tensors_of_the_cpu, backend=BACKEND):
            self.assertEqual((reduced, every), ([3.] * 3, [0, 1]))
            self.assertEqual((name, other), (BACKEND, BACKEND))
            self.assertEqual(why, "a group of cpu:ddprun,cuda:nccl cannot take tensors of GPUs "
                                  "here: PyTorch finds no GPU")

    def test_the_order_of_the_devices_does_not_matter(self):
        run(2, use_tensors_of_the_cpu, backend="cuda:nccl,cpu:ddprun")

    def test_tensors_of_gpus_go_to_nccl(self):
        for calls, devices in run(2, use_tensors_of_gpus, backend=BACKEND):
            self.assertEqual(calls, ["allreduce", "allgather", "gather", "_allgather_base", "send",
                                     "barrier", "_get_backend", "set_timeout", "_set_group_name",
                                     "_set_group_desc", "shutdown"])
            self.assertEqual(devices, ["cpu", "cuda"])

    def test_messages_between_gpus_are_coalesced(self):
        for calls in run(2, exchange_between_gpus, backend=BACKEND):
            self.assertEqual(calls, ["_start_coalescing", "send", "recv", "_end_coalescing"])

    def test_other_backends_in_one_group_are_refused(self):
        with self.assertRaisesRegex(AssertionError, "shares a group with no other backend than in "
                                                    r"'cpu:ddprun,cuda:nccl' \(invalid value "
                                                    r"'cpu:ddprun,cuda:gloo'\)"):
            run(1, use_tensors_of_the_cpu, backend="cpu:ddprun,cuda:gloo")


if __name__ == "__main__":
    ranks.use_library()
    torch.cuda.is_available = lambda: False  # also on a machine with a GPU
    unittest.main()
