#!/usr/bin/env python3
"""Measures torch.distributed on the backend "ddprun" against gloo, in Python processes.

    benchmarks/python_collectives.py [--ranks N] [--rounds N] [--steps N]

Each rank has both backends, which take turns within each round. The function of the library alone
is the floor: what a call of torch.distributed adds to it is the cost of Python. A figure is the
median of the rounds on rank 0. DDP's overhead is relative to a step of the same model without DDP,
which the ranks take at the same time. Use an idle machine.

Finds the library through DDPRUN_CPU_LIBRARY, else in build/release/lib.
"""
import argparse
import os
import pathlib
import statistics
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("DDPRUN_CPU_LIBRARY", str(ROOT / "build/release/lib/libddprun_cpu.so"))

import ddprun  # noqa: F401
import torch
import torch._dynamo  # noqa: F401  DDP imports it: here once, not in every rank
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [4, 64 << 10, 1 << 20, 25 << 20, 100 << 20]  # bytes
# Width, layers, samples of a rank; gradients of 1, 7 and 20 MiB, as in data_parallel.py.
NETS = [(256, 4, 16), (512, 7, 16), (1024, 5, 64)]


def seconds_of(call, times):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def measure(calls, times, rounds):
    """Returns the median seconds of each call; the calls take turns."""
    found = {name: [] for name in calls}
    for round_number in range(rounds + 1):
        for name, call in calls.items():
            seconds = seconds_of(call, times)
            if round_number > 0:  # the first round warms up
                found[name].append(seconds)
    return {name: statistics.median(values) for name, values in found.items()}


def measure_all_reduce(gloo, options):
    from ddprun import _engine

    rows = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        group = dist.group.WORLD
        buffer = struct.pack("PN", tensor.data_ptr(), size)
        calls = {
            "gloo": lambda: dist.all_reduce(tensor, group=gloo),
            "ddprun": lambda: dist.all_reduce(tensor),
            "floor": lambda: _engine.all_reduce(group._handle, buffer, 1, 8, 0, 10**12, None),
        }
        rows[size] = measure(calls, max(2, min(500, (16 << 20) // size)), options.rounds)
    return rows


def step_of(net, wrap):
    width, layers, samples = net
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(*(
        module for _ in range(layers)
        for module in (torch.nn.Linear(width, width), torch.nn.ReLU()))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(samples, width)

    def step():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def measure_steps(gloo, options):
    ddp = torch.nn.parallel.DistributedDataParallel
    rows = {}
    for net in NETS:
        calls = {
            "plain": step_of(net, lambda model: model),
            "gloo": step_of(net, lambda model: ddp(model, process_group=gloo)),
            "ddprun": step_of(net, ddp),
        }
        rows[net] = measure(calls, options.steps, options.rounds)
    return rows


def rank_main(rank, options, init_file):
    torch.set_num_threads(1)
    dist.init_process_group("ddprun", init_method=f"file://{init_file}", rank=rank,
                            world_size=options.ranks)
    gloo = dist.new_group(backend="gloo")
    rows = measure_all_reduce(gloo, options)
    steps = measure_steps(gloo, options)
    if rank == 0:
        show(rows, steps, options)
    dist.destroy_process_group()


def show(rows, steps, options):
    processor = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                      if line.startswith("model name")), "unknown")
    print(f"{processor}, {len(os.sched_getaffinity(0))} cores, {options.ranks} ranks, "
          f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print("| all_reduce | gloo us | ddprun us | library us | added us | R |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size, us in rows.items():
        gloo, ours, floor = (us[name] * 1e6 for name in ("gloo", "ddprun", "floor"))
        print(f"| {size} B | {gloo:.1f} | {ours:.1f} | {floor:.1f} | {ours - floor:.1f} | "
              f"{gloo / ours:.1f} |")
    print("\n| DDP step | plain ms | gloo | ddprun |")
    print("| --- | --- | --- | --- |")
    for net, seconds in steps.items():
        plain = seconds["plain"]
        overheads = (f"+{100 * (seconds[name] / plain - 1):.0f} %" for name in ("gloo", "ddprun"))
        print(f"| {net[1]} layers of {net[0]} | {plain * 1e3:.2f} | {' | '.join(overheads)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps of DDP in a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_main, (options, os.path.join(folder, "init")), options.ranks,
                           start_method="fork")


if __name__ == "__main__":
    main()
