"""round_server.h for ranks in Python: calls that are repeated when the driver says so."""

import os
import resource
import socket
import time


def processor_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def answer(line: str, prepare, barrier) -> str:
    name, count, untimed, *sizes = line.split()
    call = prepare(name, [int(size) for size in sizes])
    if call is None:
        return "none"
    try:
        for _ in range(int(untimed)):
            call()
    except (RuntimeError, ValueError):  # on all ranks: this PyTorch's gloo has no such call
        return "none"
    barrier()
    used, begin = processor_us(), time.perf_counter()
    for _ in range(int(count)):
        call()
    barrier()
    taken = time.perf_counter() - begin
    return f"{taken * 1e6} {processor_us() - used}"


def serve_rounds(path: str, rank: int, prepare, barrier) -> None:
    """Carries out the driver's orders until it goes, and ends the process.

    prepare: of a call's name and numbers, what is to be repeated; None: there is no such call.
    """
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(path)
    driver.sendall(f"rank {rank}\n".encode())
    for line in driver.makefile("r"):
        driver.sendall((answer(line, prepare, barrier) + "\n").encode())
    os._exit(0)  # the others may have left already, which gloo takes for a failure
