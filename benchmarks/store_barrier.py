#!/usr/bin/env python3
"""Measures a barrier of 1,000 clients: ddp-store against PyTorch's libuv server.

    ninja -C build/release benchmarks
    benchmarks/store_barrier.py [--bin build/release/bin] [--clients 1000]

Run it with a python that has torch. Each server is a process of its own. The clients are those
of the program store_barrier; store_barrier.cc says what is measured.
"""

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/integration/rendezvous"))
from pytorch_clients import ddp_store, pytorch_store  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # PyTorch's server inherits the limit
    with ddp_store(options.bin) as ours, pytorch_store(use_libuv=True) as theirs:
        program = os.path.join(options.bin, "store_barrier")
        (peer,) = multiprocessing.active_children()
        servers = [ours.port, ours.pid, theirs, peer.pid]
        subprocess.run([program, *map(str, servers), str(options.clients)], check=True)


if __name__ == "__main__":
    main()
