#!/usr/bin/env python3
"""Measures get and add with PyTorch's TCPStore client: ddp-store against PyTorch's libuv server.

    benchmarks/store_rate.py [--bin build/release/bin] [--rounds 7] [--seconds 0.5]
        [--clients 1 16]

Run it with a python that has torch. Each server is a process of its own, and so is each client.
The rounds alternate between the servers, so other load of the machine affects all. Medians are
printed. The floor is bare_store, which answers at once with as many bytes: no server gets more
out of these clients on this machine. With store_client_rate in --bin, ddprun's C++ client is
measured, too, with its floor: a blocking echo of messages of the same size over the same kind of
socket.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/integration/rendezvous"))
from pytorch_clients import connect, ddp_store, pytorch_store  # noqa: E402


@contextlib.contextmanager
def bare_store(binaries):
    """Runs a bare_store. Yields its port."""
    server = subprocess.Popen([os.path.join(binaries, "bare_store")], stdout=subprocess.PIPE,
                              text=True)
    try:
        yield int(server.stdout.readline().rsplit(":", 1)[1])
    finally:
        server.kill()
        server.wait()


def client_main(ports, pipe):
    """Executes orders (server, operation, seconds). Answers with the number of operations done."""
    stores = {name: connect(port) for name, port in ports.items()}
    for store in stores.values():
        store.set("key", "0123456789abcdef")
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        name, operation, seconds = order
        store = stores[name]
        call = ((lambda: store.get("key")) if operation == "get"
                else (lambda: store.add("counter", 1)))
        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(50):
                call()
            count += 50
        pipe.send(count)


def measure(ports, clients, rounds, seconds):
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(clients):
        ours, theirs = context.Pipe()
        process = context.Process(target=client_main, args=(ports, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    rates = {}
    for _ in range(rounds):
        for operation in ("get", "add"):
            # Strictly in turn. On some virtual machines a pair of processes gets slower when it
            # continues to exchange messages. A server that is measured twice in a row would look
            # slower.
            for name in ports:
                started = time.perf_counter()
                for pipe in pipes:
                    pipe.send((name, operation, seconds))
                total = sum(pipe.recv() for pipe in pipes)
                elapsed = time.perf_counter() - started
                rates.setdefault((operation, name), []).append(total / elapsed)
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    return {key: statistics.median(values) for key, values in rates.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()

    with ddp_store(options.bin) as server, pytorch_store(use_libuv=True) as theirs, \
            bare_store(options.bin) as bare:
        ours = server.port
        ports = {"ddp-store": ours, "libuv": theirs, "floor": bare}
        print(f"{'operations/s':<28}{'ddp-store':>12}{'libuv':>12}{'floor':>12}"
              f"{'ours/libuv':>12}{'floor/libuv':>12}")
        for clients in options.clients:
            rates = measure(ports, clients, options.rounds, options.seconds)
            for operation in ("get", "add"):
                a, b, c = (rates[operation, name] for name in ports)
                label = f"{operation}, {clients} PyTorch client{'s' if clients > 1 else ''}"
                print(f"{label:<28}{a:>12.0f}{b:>12.0f}{c:>12.0f}{a / b:>12.2f}{c / b:>12.2f}",
                      flush=True)
        probe = os.path.join(options.bin, "store_client_rate")
        if os.path.exists(probe):
            sys.stdout.flush()
            subprocess.run([probe, str(ours), str(theirs)], check=True)


if __name__ == "__main__":
    main()
