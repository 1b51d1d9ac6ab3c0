#!/usr/bin/env python3
"""Compares the collectives of the backend "ddprun" with those of gloo, in the same processes.

    collectives_test.py LIBRARY_DIR [unittest arguments]

Moved data, integers, minima and maxima are equal in every bit. Floating-point sums, products and
means differ by rounding only, but all ranks and all runs have the same bits.
"""
import datetime
import gc
import threading
import unittest
import weakref

import ranks
import torch
import torch._dynamo  # noqa: F401  DDP imports it: here once, not in every rank
from torch.distributed.device_mesh import init_device_mesh

from ranks import dist, run

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # before torch 2.6
    fully_shard = None

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
COUNTS = [0, 1, 7, 1000]
MANY = 200_001  # takes several chunks
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5, torch.float64: 1e-12,
             torch.complex64: 1e-5, torch.complex128: 1e-12}


def values(rank, count, dtype):
    torch.manual_seed(1000 + rank)
    if dtype is torch.bool:
        return torch.rand(count) < 0.7
    if dtype in INTEGERS:
        return torch.randint(0, 100, (count,)).to(dtype)
    return (torch.rand(count, dtype=torch.complex128) if dtype in COMPLEX
            else torch.rand(count, dtype=torch.float64) + 0.5).to(dtype)


def has_op(dtype, op):
    """Returns whether PyTorch's users expect the operation for the type."""
    if dtype in COMPLEX:
        return op in ("SUM", "AVG")
    if op == "AVG":
        return dtype in FLOATS
    return op in ("SUM", "PRODUCT", "MIN", "MAX") or dtype not in FLOATS


def expected(size, count, dtype, op):
    """Returns the reduction in the order of the ranks, with f64 in between."""
    wide = {torch.bool: torch.bool}.get(
        dtype, torch.complex128 if dtype in COMPLEX else
        torch.float64 if dtype in FLOATS else torch.int64)
    every = [values(rank, count, dtype).to(wide) for rank in range(size)]
    result = every[0].clone()
    for one in every[1:]:
        if op in ("SUM", "AVG"):
            result = result | one if wide is torch.bool else result + one
        elif op == "PRODUCT":
            result = result & one if wide is torch.bool else result * one
        elif op in ("MIN", "MAX"):
            both = torch.stack([result, one])
            result = both.amin(0) if op == "MIN" else both.amax(0)
        else:
            result = {"BAND": result & one, "BOR": result | one, "BXOR": result ^ one}[op]
    return (result / size if op == "AVG" else result).to(dtype)


def require_equal(got, wanted, what):
    limit = TOLERANCE.get(got.dtype, 0)
    if not torch.allclose(got, wanted, rtol=limit, atol=limit):
        raise AssertionError(f"{what}: {got} is not {wanted}")


def reduce_everything(rank, size):
    """Checks every type and operation; returns the bytes of all results."""
    results = []
    for dtype in [torch.bool] + INTEGERS + FLOATS + COMPLEX:
        for op in filter(lambda op: has_op(dtype, op), OPS):
            for count in COUNTS + [MANY] * (op == "SUM" and dtype in FLOATS):
                what = f"{op} of {count} {dtype}"
                wanted = expected(size, count, dtype, op)
                tensor = values(rank, count, dtype)
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                require_equal(tensor, wanted, what)
                results.append(tensor)
    return [bytes(one.view(torch.uint8).numpy()) if one.numel() else b"" for one in results]


def refuse_reductions(rank, size):
    told = []
    for tensor, op in [(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
                       (torch.ones(2), dist.ReduceOp.BOR)]:
        try:
            dist.all_reduce(tensor, op)
        except RuntimeError as error:
            told.append(str(error))
    try:
        dist.broadcast(torch.ones(2).to_sparse(), 0)
    except ValueError as error:
        told.append(str(error))
    dist.barrier()  # the group goes on
    return told


def move_as_gloo(rank, size):
    """Checks every collective that moves data, blocking and not, plain and strided."""
    gloo = dist.new_group(backend="gloo")
    root = size - 1

    def mine(*shape):
        torch.manual_seed(rank)
        return torch.randint(0, 1000, shape, dtype=torch.int64)

    def plain(*shape):
        return torch.zeros(shape, dtype=torch.int64)

    def strided(*shape):
        return torch.zeros(shape + (2,), dtype=torch.int64)[..., 0]

    def lists(make):
        return [make(3, 2) for _ in range(size)]

    rows = [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]
    sent = rows[rank]
    received = [rows[sender][rank] for sender in range(size)]
    calls = {
        "broadcast": lambda make, **how: (
            [t := mine(3, 2) if rank == root else make(3, 2)], dist.broadcast(t, root, **how)),
        "all_gather": lambda make, **how: (
            out := lists(make), dist.all_gather(out, mine(3, 2), **how)),
        "all_gather_into_tensor": lambda make, **how: (
            [t := make(3 * size, 2)], dist.all_gather_into_tensor(t, mine(3, 2), **how)),
        "gather": lambda make, **how: (
            out := lists(make), dist.gather(mine(3, 2), out if rank == root else None, root,
                                            **how)),
        "scatter": lambda make, **how: (
            [t := make(3, 2)],
            dist.scatter(t, list(mine(size, 3, 2)) if rank == root else None, root, **how)),
        "reduce": lambda make, **how: (
            [t := mine(3, 2)], dist.reduce(t, root, **how)),
        "reduce_scatter_tensor": lambda make, **how: (
            [t := make(3, 2)], dist.reduce_scatter_tensor(t, mine(3 * size, 2), **how)),
        "all_to_all_single": lambda make, **how: (
            [t := make(sum(received), 2)],
            dist.all_to_all_single(t, mine(sum(sent), 2), received, sent, **how)),
        "all_reduce": lambda make, **how: (
            [t := make(3, 2).add_(mine(3, 2))], dist.all_reduce(t, **how)),
    }
    for name, call in calls.items():
        wanted, _ = call(plain, group=gloo)
        for make in (plain, strided):
            for is_async in (False, True):
                got, work = call(make, async_op=is_async)
                if is_async:
                    work.wait()
                # gloo changes the tensors of ranks that are not the root of a reduction.
                if name == "reduce" and rank != root:
                    continue
                for one, other in zip(got, wanted):
                    require_equal(one, other, f"{name} (async: {is_async})")
    # gloo has no lists of these.
    out = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(out, [torch.full((2,), 10. * rank + to) for to in range(size)])
    require_equal(torch.stack(out)[:, 0], torch.tensor([10. * r + rank for r in range(size)]),
                  "all_to_all")
    part = torch.zeros(2)
    dist.reduce_scatter(part, [torch.full((2,), rank + to * 1.) for to in range(size)])
    require_equal(part, torch.full((2,), sum(range(size)) + 1. * rank * size),
                  "reduce_scatter")
    return True


def pass_messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(4)
    work = dist.isend(torch.full((4,), 1. * rank), right, tag=3)
    dist.recv(got, left, tag=3)
    work.wait()
    require_equal(got, torch.full((4,), 1. * left), "recv")
    if rank == 0:
        sources = {dist.recv(got) for _ in range(size - 1)}
        if sources != set(range(1, size)):
            raise AssertionError(f"received from {sources}")
    else:
        dist.send(got, 0)
    dist.barrier()  # before it, rank 0 may receive a later message of rank 2 from "any"
    incoming = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), 5.), right),
                                        dist.P2POp(dist.irecv, incoming, left)]):
        work.wait()
    require_equal(incoming, torch.full((2,), 5.), "batch_isend_irecv")
    return True


def pass_a_strided_message_while_a_collective_waits(rank, size):
    """Rank 1 comes to the all_reduce only after it has the message."""
    one = torch.ones(5000)
    matrix = torch.arange(6.).reshape(2, 3)
    if rank == 0:
        work = dist.all_reduce(one, async_op=True)
        dist.send(matrix.t(), 1)
        work.wait()
    else:
        got = torch.zeros(2, 3)
        dist.recv(got.t(), 0)
        require_equal(got, matrix, "recv")
        dist.all_reduce(one)
    require_equal(one, torch.full((5000,), 2.), "all_reduce")
    return True


def use_groups_and_objects(rank, size):
    evens = dist.new_group(list(range(0, size, 2)))
    if rank % 2 == 0:
        one = torch.ones(1)
        dist.all_reduce(one, group=evens)
        require_equal(one, torch.full((1,), (size + 1) // 2 * 1.), "in a group")
        dist.destroy_process_group(evens)
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank, "data": "x" * 1000 * rank})
    told = [None]
    if rank == 1:
        told = [("any", 1)]
    dist.broadcast_object_list(told, src=1)
    return [one["rank"] for one in every], told


def reduce_sparse(rank, size):
    wanted = torch.zeros(6, 2)
    for one in range(size):
        wanted[one] += 1
        wanted[2 * one] += one
    mine = torch.zeros(6, 2)
    mine[rank] += 1
    mine[2 * rank] += rank
    sparse = mine.to_sparse(1)
    dist.all_reduce(sparse)
    require_equal(sparse.to_dense(), wanted, "sparse")
    embedding = torch.nn.Embedding(6, 2, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(embedding)
    model(torch.tensor([rank, 5])).sum().backward()
    dense = torch.zeros(6, 2)
    dense[:size] = 1. / size
    dense[5] += 1
    require_equal(embedding.weight.grad.to_dense(), dense, "DDP of sparse gradients")
    return True


def use_meshes(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    shards = distribute_tensor(torch.arange(8.), mesh, [Shard(0)])
    require_equal(shards.redistribute(mesh, [Replicate()]).to_local(), torch.arange(8.), "DTensor")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    data = torch.rand(size, 4)
    net(data).sum().backward()
    wanted = [one.grad / size for one in net.parameters()]
    net.zero_grad()
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    net(data[rank:rank + 1]).sum().backward()
    for one, other in zip(net.parameters(), wanted):
        require_equal(one.grad.full_tensor(), other, "FSDP2")
    return True


def use_groups_from_threads(rank, size):
    groups = [dist.new_group() for _ in range(4)]
    tensors = [torch.full((10,), 1. * rank) for _ in groups]

    def reduce_often(group, tensor):
        for _ in range(20):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)

    threads = [threading.Thread(target=reduce_often, args=both) for both in zip(groups, tensors)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for tensor in tensors:
        require_equal(tensor, torch.full((10,), size - 1.), "in threads")
    return True


def complete_futures_in_order(rank, size):
    tensors = [torch.full((1000,), 1. * rank) for _ in range(20)]
    works = [dist.all_reduce(one, async_op=True) for one in tensors]
    doubled = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
    last = torch.ones(1)
    dist.all_reduce(last)  # a blocking call waits for those before it
    wanted = torch.full((1000,), 1. * sum(range(size)))
    for work, tensor, future in zip(works, tensors, doubled):
        if not (work.is_completed() and work.is_success() and work.exception() is None):
            raise AssertionError("a call before the last one has not ended")
        require_equal(tensor, wanted, "async")
        require_equal(future.wait(), wanted * 2, "future")
    return True


def keep_dropped_works(rank, size):
    """Checks that the memory of a call lives until its end, if the program drops all of it."""
    from ddprun import _process_group

    _process_group._KEEPS_WORKS = False  # it would live longer
    if rank == 1:
        dist.recv(torch.zeros(1), 0)  # the call cannot end before
    tensor = torch.ones(5000)
    lives = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    gc.collect()
    if rank == 0:
        if lives() is None:
            raise AssertionError("the tensor is gone before its call has ended")
        dist.send(torch.zeros(1), 1)
    dist.barrier()
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    return lives() is None


def keep_unwaited_works(rank, size):
    """Returns how many works a group keeps for PyTorch: some, waited for, and too many."""
    from ddprun import _process_group

    _process_group._KEEPS_WORKS = True
    kept = dist.group.WORLD._unwaited
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    counts = [len(kept)]
    works[0].wait()
    works[1].get_future().wait()
    counts.append(len(kept))
    # PyTorch may wait for each tensor of a coalesced call.
    shared = dist.group.WORLD.allreduce_coalesced([torch.ones(1), torch.ones(1)])
    for _ in range(2):
        shared.wait()
        counts.append(len(kept))
    for _ in range(300):
        dist.barrier(async_op=True)
    return [*counts, len(kept)]


def reduce_with_power_sgd(rank, size):
    """Returns the weights after steps with a hook whose callbacks take futures and wait."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 40))
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 50), rank + step + 1.)).square().mean().backward()
        optimizer.step()
    if state.iter < 3:
        raise AssertionError("nothing was compressed")
    return [one.detach().tolist() for one in model.parameters()]


def refuse_lists(rank, size):
    group = dist.group.WORLD
    one, other = torch.ones(2), torch.ones(2, dtype=torch.float64)

    def coalesce():
        with dist._coalescing_manager():
            dist.all_reduce(one)
            dist.all_reduce(other)

    calls = [
        coalesce,
        lambda: group.allreduce_coalesced([one, other]),
        lambda: group.reduce_scatter_tensor_coalesced(
            [one, other], [one.repeat(size), other.repeat(size)]),
        lambda: group.allgather_coalesced([[one]] * size, [one, one]),
        lambda: group.allgather_into_tensor_coalesced([one.repeat(size)], [one, one]),
        lambda: group.reduce_scatter([one], [[one] * size] * 2),
    ]
    told = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            told.append(str(error))
    dist.barrier()  # the group goes on
    return told


def use_overloads(rank, size):
    group = dist.group.WORLD
    limit = datetime.timedelta(seconds=20)

    def mine():
        return torch.full((2,), 1. * rank)

    largest, total = torch.full((2,), size - 1.), torch.full((2,), 1. * sum(range(size)))
    for arguments in ([dist.ReduceOp.MAX], [dist.ReduceOp.MAX, limit]):
        tensor = mine()
        group.allreduce([tensor], *arguments).wait()
        require_equal(tensor, largest, "allreduce(tensors, op)")
    tensor = mine()
    group.allreduce(tensor, timeout=limit).wait()
    require_equal(tensor, total, "allreduce(tensor, timeout)")
    tensor = mine()
    group.broadcast(tensor, 1).wait(limit)
    require_equal(tensor, torch.ones(2), "broadcast(tensor, root)")
    tensor = mine()
    group.reduce(tensor, 1, dist.ReduceOp.MAX).wait()
    require_equal(tensor, largest if rank == 1 else mine(), "reduce(tensor, root, op)")
    out = [torch.zeros(2) for _ in range(size)] if rank == 0 else []
    group.gather(out, mine(), 0).wait()
    for other, tensor in enumerate(out):
        require_equal(tensor, torch.full((2,), 1. * other), "gather(outputs, input, root)")
    tensor = torch.zeros(2)
    group.scatter(tensor, [torch.full((2,), 5. + to) for to in range(size)] if rank == 0 else [],
                  0).wait()
    require_equal(tensor, torch.full((2,), 5. + rank), "scatter(output, inputs, root)")
    group.barrier(timeout=limit).wait()
    return True


def write_strided_tensors(rank, size):
    weight = torch.nn.Parameter(
        torch.full((2, 3, 4, 4), 1. * rank).to(memory_format=torch.channels_last))
    dist.broadcast(weight, 1)
    dist.broadcast(weight, 1, async_op=True).wait()
    require_equal(weight.detach(), torch.ones(2, 3, 4, 4), "a strided leaf")
    tensor = torch.ones(1000, 2)[:, 0]
    for work in [dist.all_reduce(tensor, async_op=True) for _ in range(3)]:
        work.wait()
    require_equal(tensor, torch.full((1000,), 1. * size**3), "one strided tensor in three calls")
    # A copy that fails is the call's error, also in a future.
    view = torch.zeros(1).expand(4)
    try:
        dist.broadcast(view, 0, async_op=True).get_future().wait()
    except RuntimeError as error:
        return str(error)
    return None


class Collectives(unittest.TestCase):
    def test_reductions_are_right_and_have_the_same_bits_on_all_ranks_and_in_all_runs(self):
        for size, times in ((2, 1), (3, 2)):
            results = [one for _ in range(times) for one in run(size, reduce_everything)]
            for one in results:
                self.assertEqual(one, results[0])

    def test_unknown_reductions_are_refused_and_the_group_goes_on(self):
        for told in run(2, refuse_reductions):
            self.assertEqual(told[:2], ["all_reduce: elements of type i32 have no operation avg",
                                        "all_reduce: elements of type f32 have no operation bor"])
            self.assertIn("has no collectives of torch.sparse_coo tensors", told[2])

    def test_moved_data_are_those_of_gloo(self):
        for size in (2, 3):
            self.assertEqual(run(size, move_as_gloo), [True] * size)

    def test_messages(self):
        self.assertEqual(run(3, pass_messages), [True] * 3)

    def test_a_strided_message_does_not_wait_for_collectives(self):
        self.assertEqual(run(2, pass_a_strided_message_while_a_collective_waits), [True] * 2)

    def test_groups_and_objects(self):
        self.assertEqual(run(3, use_groups_and_objects), [([0, 1, 2], [("any", 1)])] * 3)

    def test_sparse_sums(self):
        self.assertEqual(run(3, reduce_sparse), [True] * 3)

    @unittest.skipIf(fully_shard is None, "this torch has no fully_shard")
    def test_meshes(self):
        self.assertEqual(run(2, use_meshes), [True] * 2)

    def test_groups_in_threads(self):
        self.assertEqual(run(2, use_groups_from_threads), [True] * 2)

    def test_asynchronous_calls(self):
        self.assertEqual(run(2, complete_futures_in_order), [True] * 2)
        self.assertEqual(run(2, keep_dropped_works), [True] * 2)
        self.assertEqual(run(2, keep_unwaited_works), [[3, 1, 2, 2, 256]] * 2)

    def test_callbacks_may_wait_for_futures(self):
        first, second = run(2, reduce_with_power_sgd)
        self.assertEqual(first, second)

    def test_wrong_lists_are_refused_and_the_group_goes_on(self):
        for told in run(2, refuse_lists):
            for text in told[:3]:
                self.assertIn("tensors of one type", text)
            self.assertEqual(told[3:], ["outputs: invalid length 1 (expected 2)"] * 3)

    def test_overloads(self):
        self.assertEqual(run(2, use_overloads), [True] * 2)

    def test_strided_tensors(self):
        for told in run(2, write_strided_tensors):
            self.assertIn("single memory location", told)


if __name__ == "__main__":
    ranks.use_library()
    unittest.main()
