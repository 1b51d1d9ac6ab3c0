"""round_server.h for ranks in Python: repeats calls on orders of the driver."""

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
    except (RuntimeError, ValueError):  # on all ranks: gloo of this PyTorch has no such call
        return "none"
    barrier()
    used, begin = processor_us(), time.perf_counter()
    for _ in range(int(count)):
        call()
    barrier()
    taken = time.perf_counter() - begin
    return f"{taken * 1e6} {processor_us() - used}"


def serve_rounds(path: str, rank: int, prepare, barrier) -> None:
    """Executes the driver's orders until the driver is gone, and ends the process.

    prepare: takes a call's name and numbers. Returns the call to repeat; None: there is no such
    call.
    """
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(path)
    driver.sendall(f"rank {rank}\n".encode())
    for line in driver.makefile("r"):
        driver.sendall((answer(line, prepare, barrier) + "\n").encode())
    os._exit(0)  # other ranks may be gone already, and gloo would report that
