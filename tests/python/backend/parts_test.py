#!/usr/bin/env python3
"""Tests parts of PyTorch that use groups, on the backend "ddprun": split_group, the checks of
TORCH_DISTRIBUTED_DEBUG=DETAIL, functional collectives, torch.distributed.checkpoint, and models of
PyTorch's own tests with tensor parallelism and FSDP.

    parts_test.py LIBRARY_DIR [unittest arguments]
"""
import copy
import tempfile
import unittest

import ranks
import torch
import torch._dynamo  # noqa: F401  DDP imports it: here once, not in every rank

from ranks import dist, run

try:
    import torch.distributed._functional_collectives as functional
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:  # before torch 2.5
    functional = None
try:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.testing._internal.common_fsdp import MLPStack
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer
except ImportError:  # an older torch, or no expecttest
    MLPStack = None


def split(rank, size):
    """Returns what the ranks of each half sum up, and the names of the halves."""
    halves = [[2, 0], [1, 3]]
    half = dist.split_group(split_ranks=halves, group_desc="half")
    one = torch.tensor([float(rank)])
    dist.all_reduce(one, group=half)
    alone = dist.split_group(half, [[1]])  # a rank of the half
    if (alone is not None) != (rank > 1):
        raise AssertionError("it is for the second rank of each half")
    refused = 0
    for wrong in ([], [[]], [[0], [0, 1]], [[size]]):
        try:
            dist.split_group(split_ranks=wrong)
        except ValueError:
            refused += 1
    return one.item(), dist.get_process_group_ranks(half), half.group_desc, refused


def check_calls(rank, size):
    """Returns what the group says of calls that differ. The group goes on after each."""
    calls = [
        lambda: dist.all_reduce(torch.ones(2, 3 - rank)),
        lambda: dist.all_reduce(torch.ones(*[(2, 3), (3, 2)][rank])),
        lambda: dist.broadcast(torch.ones(2, dtype=[torch.float32, torch.int32][rank]), 0),
        lambda: [lambda: dist.all_reduce(torch.ones(1)), dist.barrier][rank](),
        lambda: dist.all_gather_into_tensor(torch.ones(2 * (rank + 1)), torch.ones(rank + 1)),
        lambda: dist.reduce_scatter_tensor(torch.ones(rank + 1), torch.ones(2 * (rank + 1))),
    ]
    told = []
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))
    dist.set_debug_level(dist.DebugLevel.OFF)  # of groups made from now on
    return told


def make_the_same_calls(rank, size):
    """Makes each collective that is checked."""
    one, each = torch.ones(2), [torch.ones(2) for _ in range(size)]
    both = torch.ones(2 * size)
    dist.all_reduce(one, async_op=True).wait()
    dist.reduce(one, 0)
    dist.broadcast(one, 0)
    dist.all_gather(each, one)
    dist.all_gather_into_tensor(both, one)
    dist.reduce_scatter(one, each)
    dist.reduce_scatter_tensor(one, both)
    dist.gather(one, each if rank == 0 else None)
    dist.scatter(one, each if rank == 0 else None)
    dist.all_to_all(each, [torch.ones(2) for _ in range(size)])
    dist.all_to_all_single(both, both.clone())
    with dist._coalescing_manager():
        dist.all_reduce(one)
    dist.barrier()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum(
    ).backward()
    return True


def with_detail(function):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        return run(2, function)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def call_functional(rank, size):
    world = dist.group.WORLD
    mine = torch.arange(4.) + rank
    every = torch.ones(4 * size) * (rank + 1)
    results = [
        functional.all_reduce(mine, "sum", world),
        functional.all_gather_tensor(mine, 0, world),
        functional.reduce_scatter_tensor(every, "sum", 0, world),
        functional.all_to_all_single(every, [4] * size, [4] * size, world),
        functional.broadcast(mine, 1, world),
        *functional.all_reduce_coalesced([mine, every], "sum", world),
        *functional.all_gather_into_tensor_coalesced([mine, every], world),
        *functional.reduce_scatter_tensor_coalesced([every, every], "sum", [0, 0], world),
        functional.permute_tensor(mine, [1, 0], world),
    ]
    leaf = torch.ones(4, requires_grad=True)
    weights = torch.arange(4. * size)
    (functional.all_gather_tensor_autograd(leaf, 0, world) * weights).sum().backward()
    results.append(leaf.grad)
    compiled = torch.compile(lambda one: functional.all_reduce(one * 2, "sum", world) + 1,
                             backend="eager")
    results.append(compiled(mine))
    return [one.tolist() for one in results]


def save_and_load(rank, size, folder):
    """Saves at once, and in the background with a group of its own, while the world is used."""
    mesh = init_device_mesh("cpu", (size,))

    def state(value):
        return {"rows": distribute_tensor(torch.full((5, 2), value), mesh, [Shard(0)]),
                "plain": torch.full((3,), value), "step": int(value)}

    dcp.save(state(3.), checkpoint_id=f"{folder}/now")
    saving = dcp.async_save(state(4.), checkpoint_id=f"{folder}/later",
                            process_group=dist.new_group())
    one = torch.ones(10)
    for _ in range(50):
        dist.all_reduce(one, dist.ReduceOp.MAX)
    saving.result()
    loaded = []
    for name in ("now", "later"):
        found = state(0.)
        dcp.load(found, checkpoint_id=f"{folder}/{name}")
        loaded.append([found["step"], found["plain"].tolist(),
                       found["rows"].full_tensor().unique().tolist()])
    return loaded


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train_by_tensor_parallelism(rank, size, sequence):
    """Compares a transformer whose tensors are sharded with a whole one."""
    torch.manual_seed(0)
    plain = Transformer(ModelArgs(n_layers=1, dim=16, n_heads=4, vocab_size=12, dropout_p=0.))
    sharded = Transformer.parallelize(copy.deepcopy(plain), init_device_mesh("cpu", (size,)),
                                      sequence, local_output_for_attn=True)
    words = torch.randint(0, 12, (3, 8))
    outputs = [model(words) for model in (plain, sharded)]
    torch.testing.assert_close(whole(outputs[1]), outputs[0])
    for one in outputs:
        one.square().mean().backward()
    for one, other in zip(plain.parameters(), sharded.parameters()):
        torch.testing.assert_close(whole(other.grad), one.grad)
    return True


def train_by_fsdp(rank, size):
    """Compares models that are sharded in one and in two dimensions with whole ones."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    plain = MLPStack(8)
    two_dimensions = copy.deepcopy(plain).parallelize(
        mesh["tensor"], mesh["data"], use_activation_checkpointing=False,
        reshard_after_forward=True)
    flat = FullyShardedDataParallel(copy.deepcopy(plain), device_id=torch.device("cpu"))
    models = plain, two_dimensions, flat
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(3):
        data = torch.rand(4, 8)
        losses = []
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            losses.append(model(data).square().mean())
            losses[-1].backward()
            optimizer.step()
        for loss in losses[1:]:
            torch.testing.assert_close(loss, losses[0])
    return True


class Parts(unittest.TestCase):
    def test_split_group(self):
        results = run(4, split)
        for rank, (total, members, description, refused) in enumerate(results):
            self.assertEqual(total, [2., 4.][rank % 2])
            self.assertEqual(members, [[0, 2], [1, 3]][rank % 2])
            self.assertEqual((description, refused), ("half", 4))

    def test_detail_names_the_calls_of_all_ranks(self):
        expected = [
            ("all_reduce float32 [2, 3]", "all_reduce float32 [2, 2]"),
            ("all_reduce float32 [2, 3]", "all_reduce float32 [3, 2]"),
            ("broadcast float32 [2]", "broadcast int32 [2]"),
            ("all_reduce float32 [1]", "barrier"),
            ("all_gather_into_tensor float32 [1]", "all_gather_into_tensor float32 [2]"),
            ("reduce_scatter_tensor float32 [1]", "reduce_scatter_tensor float32 [2]")]
        for told in with_detail(check_calls):
            self.assertEqual(told, [
                f"Detected mismatch between collectives on ranks: rank 0 calls {first}, "
                f"rank 1 calls {second}" for first, second in expected])

    def test_detail_leaves_the_same_calls_alone(self):
        self.assertEqual(with_detail(make_the_same_calls), [True] * 2)

    @unittest.skipIf(functional is None, "this torch has no torch.distributed.tensor")
    def test_functional_collectives_are_those_of_gloo(self):
        self.assertEqual(run(2, call_functional), run(2, call_functional, backend="gloo"))

    @unittest.skipIf(functional is None, "this torch has no torch.distributed.tensor")
    def test_checkpoints_are_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            for loaded in run(2, save_and_load, folder):
                self.assertEqual(loaded, [[3, [3.] * 3, [3.]], [4, [4.] * 3, [4.]]])

    @unittest.skipIf(MLPStack is None, "torch.testing is older or lacks expecttest")
    def test_tensors_and_sequences_are_sharded(self):
        for sequence in (False, True):
            self.assertEqual(run(2, train_by_tensor_parallelism, sequence), [True] * 2)

    @unittest.skipIf(MLPStack is None, "torch.testing is older or lacks expecttest")
    def test_fsdp_and_tensor_parallelism_in_two_dimensions(self):
        self.assertEqual(run(4, train_by_fsdp), [True] * 4)


if __name__ == "__main__":
    ranks.use_library()
    unittest.main()
