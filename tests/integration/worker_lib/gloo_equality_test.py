"""Compares the results of our collectives (collectives_probe.cc) with those of PyTorch's gloo.

The inputs are random and the same for both. The test covers every collective, operation and
dtype, in a world of 3 ranks (the whole: also of 2 and 4). If gloo lacks a call, the test computes
the reference itself, and prints for which calls it did.

- Bools, integers, minima, maxima and moved data are equal in every bit.
- Floating-point sums and products have the unit roundoff u of the dtype. Each of n-1 roundings
  in any order adds an error of at most u S. S is the sum of the magnitudes (of a product: its
  magnitude). So two orders differ by at most 2 (n-1) u S.
- We accumulate f16 and bf16 in f32. Our result is as near to the exact result as gloo's,
  except for one rounding. It is not farther from it than one rounding of an f32 sum.

argv: the folder of the programs. With a second argument: a rank of gloo's side, which works in
that folder. DDPRUN_TEST_SEED changes the inputs.
"""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
from datetime import timedelta

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch")
import torch
import torch.distributed as dist

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [torch.bool] + INTEGERS + FLOATS + COMPLEX
OPS = ["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"]
REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
MOVING = ["broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all",
          "all_to_all_single"]
FACTORS = [0.5, 3.0, -1.25, 0.1]  # for premul_sum, by rank

Case = collections.namedtuple("Case", "index call op dtype count root")


def is_defined(op: str, dtype: torch.dtype) -> bool:
    if op in ("avg", "premul_sum"):
        return dtype in FLOATS + COMPLEX
    if dtype in COMPLEX:
        return op == "sum"
    return op not in ("band", "bor", "bxor") or dtype not in FLOATS


def cases(world: int) -> list[Case]:
    found = []
    def add(call: str, op: str, dtype: torch.dtype, counts: list[int]) -> None:
        for count in counts:
            found.append(Case(len(found), call, op, dtype, count, len(found) % world))
    for dtype in DTYPES:
        for call in REDUCING:
            for op in OPS:
                if is_defined(op, dtype):
                    add(call, op, dtype, [0, 1, 7, 5003] if op == "sum" else [33, 1001])
        for call in MOVING:
            add(call, "", dtype, [0, 1, 7, 4099])
    return found


def numbers(seed: int, case: Case, rank: int, part: int, count: int) -> torch.Tensor:
    """Returns the data that a rank contributes, or the part of them that is for one rank."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + case.index * 64 + rank * 8 + part)
    if case.dtype in COMPLEX:
        real = torch.float32 if case.dtype == torch.complex64 else torch.float64
        return torch.view_as_complex(floats(random, (count, 2)).to(real))
    if case.dtype in FLOATS:
        return floats(random, (count,)).to(case.dtype)
    bits = torch.randint(-2**62, 2**62, (count,), generator=random)
    return bits % 3 > 0 if case.dtype == torch.bool else bits.to(case.dtype)


def floats(random: torch.Generator, sizes: tuple) -> torch.Tensor:
    """Returns values of both signs and different magnitudes, so that the order of a sum shows."""
    mantissa = 1 + torch.rand(sizes, generator=random, dtype=torch.float64)
    sign = torch.randint(0, 2, sizes, generator=random) * 2 - 1
    return torch.ldexp(sign * mantissa, torch.randint(-4, 4, sizes, generator=random))


def rows(case: Case, sender: int, receiver: int) -> int:
    """Returns the number of rows from sender to receiver in an all_to_all."""
    return (sender + 2 * receiver) % 4 * case.count // 2


def inputs(seed: int, case: Case, rank: int, world: int) -> list[torch.Tensor]:
    if case.call in ("all_to_all", "all_to_all_single"):
        return [numbers(seed, case, rank, to, rows(case, rank, to)) for to in range(world)]
    if case.call == "scatter" and rank != case.root:
        return []
    parts = world if case.call in ("reduce_scatter", "reduce_scatter_tensor", "scatter") else 1
    return [numbers(seed, case, rank, part, case.count) for part in range(parts)]


def outputs(case: Case, rank: int, world: int) -> list[torch.Tensor]:
    """Returns tensors for the results."""
    if case.call in ("all_to_all", "all_to_all_single"):
        sizes = [rows(case, sender, rank) for sender in range(world)]
    elif case.call == "all_gather" or case.call == "gather" and rank == case.root:
        sizes = [case.count] * world
    else:
        sizes = {"all_gather_into_tensor": [case.count * world], "scatter": [case.count],
                 "reduce_scatter": [case.count],
                 "reduce_scatter_tensor": [case.count]}.get(case.call, [])
    return [torch.zeros(size, dtype=case.dtype) for size in sizes]


# --- gloo ---

def by_gloo(case: Case, rank: int, given: list[torch.Tensor],
            out: list[torch.Tensor]) -> list[torch.Tensor]:
    if case.op == "premul_sum":
        raise NotImplementedError("gloo has no factors")
    op = getattr(dist.ReduceOp, case.op.upper()) if case.op else None
    mine = given[0] if given else None
    match case.call:
        case "all_reduce":
            dist.all_reduce(mine, op)
            return [mine]
        case "reduce":
            dist.reduce(mine, case.root, op)
            return [mine] if rank == case.root else []
        case "broadcast":
            dist.broadcast(mine, case.root)
            return [mine]
        case "reduce_scatter":
            dist.reduce_scatter(out[0], given, op)
        case "reduce_scatter_tensor":
            dist.reduce_scatter_tensor(out[0], torch.cat(given), op)
        case "all_gather":
            dist.all_gather(out, mine)
        case "all_gather_into_tensor":
            dist.all_gather_into_tensor(out[0], mine)
        case "gather":
            dist.gather(mine, out or None, case.root)
        case "scatter":
            dist.scatter(out[0], given or None, case.root)
        case "all_to_all":
            dist.all_to_all(out, given)
        case "all_to_all_single":
            together = torch.cat(out)
            dist.all_to_all_single(together, torch.cat(given), [len(one) for one in out],
                                   [len(one) for one in given])
            return [together]
    return out


def gloo_rank(folder: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    seed = int(os.environ["DDPRUN_TEST_SEED"])
    results: list = []
    for case in cases(world):
        try:
            results.append(by_gloo(case, rank, inputs(seed, case, rank, world),
                                   outputs(case, rank, world)))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            results.append(str(error).splitlines()[0])  # gloo has no such call
    torch.save(results, folder / f"theirs.{rank}")
    dist.destroy_process_group()


# --- the expected results ---

def moved(seed: int, case: Case, rank: int, world: int) -> list[torch.Tensor]:
    def of(sender: int) -> list[torch.Tensor]:
        return inputs(seed, case, sender, world)
    match case.call:
        case "broadcast":
            return of(case.root)
        case "all_gather":
            return [of(sender)[0] for sender in range(world)]
        case "all_gather_into_tensor":
            return [torch.cat([of(sender)[0] for sender in range(world)])]
        case "gather":
            return [of(sender)[0] for sender in range(world)] if rank == case.root else []
        case "scatter":
            return [of(case.root)[rank]]
        case "all_to_all":
            return [of(sender)[rank] for sender in range(world)]
        case _:
            return [torch.cat([of(sender)[rank] for sender in range(world)])]


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns complex tensors as pairs, and bools as 0 and 1.

    gloo adds the bytes of bools, so that they may have other values."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8).ne(0) if tensor.dtype == torch.bool else tensor


def folded(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Reduces in int64 or float64.

    The lower bits of an int64 are those of the sums and products of every smaller type."""
    result = tensors[0]
    for one in tensors[1:]:
        result = {"sum": torch.add, "avg": torch.add, "premul_sum": torch.add, "product": torch.mul,
                  "min": torch.minimum, "max": torch.maximum, "band": torch.bitwise_and,
                  "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op](result, one)
    return result / len(tensors) if op == "avg" else result


def check_reduced(case: Case, given: list[torch.Tensor], ours: torch.Tensor,
                  theirs: torch.Tensor | None) -> None:
    """given: the contribution of each rank. theirs: None if gloo has no such call."""
    given, ours = [as_numbers(one) for one in given], as_numbers(ours)
    theirs = None if theirs is None else as_numbers(theirs)
    world, dtype = len(given), ours.dtype
    if not dtype.is_floating_point or case.op in ("min", "max"):
        wide = given if dtype.is_floating_point else [one.to(torch.int64) for one in given]
        exact = folded(case.op, wide)
        exact = exact.ne(0) if dtype == torch.bool else exact.to(dtype)
        assert torch.equal(ours, exact), "it is not the reference"
        assert theirs is None or torch.equal(ours, theirs), "it is not gloo's"
        return
    wide = [one.double() for one in given]
    if case.op == "premul_sum":
        wide = [one * factor for one, factor in zip(wide, FACTORS)]
    exact = folded(case.op, wide)
    magnitude = folded(case.op, [one.abs() for one in wide])
    u = torch.finfo(dtype).eps / 2
    least = torch.finfo(dtype).tiny * u
    further = (case.op == "avg") + (case.op == "premul_sum")  # a division, a product
    if dtype in (torch.float16, torch.bfloat16):
        one_rounding = (u * exact.abs()
                        + (world - 1 + further) * 2.0**-24 * magnitude * 1.01 + 2 * least)
        if case.op == "premul_sum":
            one_rounding += u * magnitude
        error = (ours.double() - exact).abs()
        assert (error <= one_rounding).all(), f"it is off by {error.max()}"
        assert theirs is None or (
            error <= (theirs.double() - exact).abs() + one_rounding).all(), "gloo's is nearer"
        return
    of_one_order = (world - 1 + further) * u * magnitude * 1.0001 + least
    expected = exact if theirs is None else theirs.double()
    difference = (ours.double() - expected).abs()
    assert (difference <= 2 * of_one_order).all(), f"it is off by {difference.max()}"


def check(seed: int, case: Case, rank: int, world: int, ours: list[torch.Tensor],
          theirs: list[torch.Tensor] | str) -> None:
    if case.op == "":
        for expected in [moved(seed, case, rank,
                               world)] + ([] if isinstance(theirs, str) else [theirs]):
            assert len(ours) == len(expected) and all(
                torch.equal(a.view(torch.uint8), b.view(torch.uint8))
                for a, b in zip(ours, expected)), "it differs"
        return
    if case.call == "reduce" and rank != case.root:
        assert ours == []
        return
    part = rank if case.call in ("reduce_scatter", "reduce_scatter_tensor") else 0
    given = [inputs(seed, case, sender, world)[part] for sender in range(world)]
    check_reduced(case, given, ours[0], None if isinstance(theirs, str) else theirs[0])


# --- the test ---

def run(binaries: pathlib.Path, world: int, seed: int, *program: object) -> None:
    done = subprocess.run([binaries / "ddprun", f"--nproc-per-node={world}", *map(str, program)],
                          capture_output=True, text=True, timeout=200, env=os.environ
                              | {"PYTHON_EXEC": sys.executable, "DDPRUN_TEST_SEED": str(seed)})
    assert done.returncode == 0, done.stdout + done.stderr


def compare(binaries: pathlib.Path, folder: pathlib.Path, world: int, seed: int,
            without: dict) -> int:
    for rank in range(world):
        torch.save([(case.call, case.op, case.root,
                     FACTORS[rank] if case.op == "premul_sum" else 1.0,
                     inputs(seed, case, rank, world), outputs(case, rank, world))
                    for case in cases(world)], folder / f"in.{rank}")
    run(binaries, world, seed, binaries / "worker_probe", "collectives", folder)
    run(binaries, world, seed, __file__, binaries, folder)
    with_gloo = 0
    for rank in range(world):
        # Both files were written just now; LibTorch's has names of types in it.
        ours = torch.load(folder / f"ours.{rank}", weights_only=False)
        theirs = torch.load(folder / f"theirs.{rank}")
        for case in cases(world):
            try:
                check(seed, case, rank, world, ours[case.index], theirs[case.index])
            except AssertionError as error:
                raise AssertionError(f"{case}, rank {rank} of {world}, DDPRUN_TEST_SEED={seed}: "
                                     f"{error}") from error
            if isinstance(theirs[case.index], str):
                dtype = str(case.dtype).removeprefix("torch.")
                without[f"{case.call} {case.op}".strip()].add(dtype)
            else:
                with_gloo += 1
    return with_gloo


def main() -> None:
    binaries = pathlib.Path(sys.argv[1])
    if len(sys.argv) == 3:
        gloo_rank(pathlib.Path(sys.argv[2]))
        return
    seed = int(os.environ.get("DDPRUN_TEST_SEED", 1))
    without: dict = collections.defaultdict(set)
    for world in (2, 3, 4) if needs.whole() else (3,):
        with tempfile.TemporaryDirectory() as folder:
            with_gloo = compare(binaries, pathlib.Path(folder), world, seed, without)
        print(f"{world} ranks: {len(cases(world)) * world} results, "
              f"{with_gloo} of them like gloo's")
        assert with_gloo > len(cases(world)) * world / 2, "gloo has done next to nothing"
    print("not in gloo: " + "; ".join(f"{call} of {', '.join(sorted(dtypes))}"
                                      for call, dtypes in without.items()))


if __name__ == "__main__":
    main()
