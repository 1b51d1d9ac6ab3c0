#!/usr/bin/env python3
"""A worker that counts steps, saves the last one, and leaves when it is asked to save.

Rank 0 trains until /mnt/checkpoints/finish is there. A rank that gets SIGUSR1 tells all others by
a file, as ddprun's library tells them by a collective.
"""
import os
import pathlib
import signal
import socket
import sys
import time

SHARED = pathlib.Path("/mnt/checkpoints")
STATE, FINISH = SHARED / "step", SHARED / "finish"
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STORE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
# The store is new in each generation.
LEAVE = SHARED / f"leave-{STORE[0]}-{STORE[1]}"


def save(step):
    new = STATE.with_suffix(".new")
    new.write_text(str(step), encoding="utf-8")
    new.rename(STATE)


def main():
    signal.signal(signal.SIGUSR1, lambda *_: LEAVE.touch())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    socket.create_connection(STORE, timeout=10).close()
    step = int(STATE.read_text(encoding="utf-8")) if STATE.exists() else 0
    print(f"rank {RANK} of {WORLD} begins at step {step}", flush=True)
    while not FINISH.exists():
        if LEAVE.exists():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # also while Python ends
            print(f"rank {RANK} saves at step {step} and leaves", flush=True)
            break
        time.sleep(0.03)
        step += 1
        if RANK == 0 and step % 5 == 0:
            save(step)
    else:
        print(f"rank {RANK} has finished", flush=True)
    if RANK == 0:
        save(step)


if __name__ == "__main__":
    sys.exit(main())
