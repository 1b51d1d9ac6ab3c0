"""Runs functions on the ranks of a process group. Each rank is a forked process.

    results = run(3, function, arguments...)

calls function(rank, size, arguments...) on each rank, with torch.distributed initialized for the
backend "ddprun", and returns what they return. The parent has imported torch but computes nothing,
so that a fork is safe.
"""
import os
import pathlib
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
sys.path.insert(0, str(ROOT / "python"))

import needs

needs.module("torch", "; scripts/setup --tests installs it into .venv")
needs.module("numpy", "; scripts/setup --tests installs it into .venv")

# Before torch, so that the tests use the import hook.
import ddprun  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 60  # seconds, for the slowest rank


def use_library():
    """Takes the folder of the library from the command line."""
    os.environ["DDPRUN_CPU_LIBRARY"] = os.path.join(sys.argv.pop(1), "libddprun_cpu.so")


class Died(Exception):
    """A rank was killed, or ended without a result."""


def _rank_main(pipe, init_file, backend, rank, size, function, arguments):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, init_method=f"file://{init_file}", rank=rank,
                                world_size=size)
        result = function(rank, size, *arguments)
        dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:  # the parent shows it
        pipe.send((False, traceback.format_exc()))
    pipe.close()


def start(size, function, *arguments, backend="ddprun", folder):
    """Starts the ranks. Returns a process and a pipe for each."""
    context = mp.get_context("fork")
    ranks = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_rank_main, args=(theirs, os.path.join(folder, "init"), backend, rank, size,
                                     function, arguments))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    return ranks


def result_of(process, pipe, deadline):
    """Returns what a rank returned; Died: it was killed."""
    try:
        if not pipe.poll(max(deadline - time.monotonic(), 0)):
            raise AssertionError(f"process {process.pid} has not ended in time")
        is_good, result = pipe.recv()
    except EOFError:
        raise Died from None
    if not is_good:
        raise AssertionError(result)
    return result


def run(size, function, *arguments, backend="ddprun", killed=()):
    """Returns the ranks' results by rank; None for those in `killed`, which must have died."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(size, function, *arguments, backend=backend, folder=folder)
        deadline = time.monotonic() + PATIENCE
        try:
            results = []
            for rank, (process, pipe) in enumerate(ranks):
                try:
                    results.append(result_of(process, pipe, deadline))
                except Died:
                    if rank not in killed:
                        raise AssertionError(f"rank {rank} died") from None
                    results.append(None)
                else:
                    if rank in killed:
                        raise AssertionError(f"rank {rank} did not die")
            return results
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
