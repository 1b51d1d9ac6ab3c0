#!/usr/bin/env python3
"""Runs every story of store_stories.py against a ddp-store and this PyTorch's own servers.

    store_transcripts.py BIN_DIR [options of ddp-store...]

It compares the results. It prints the differences and exits with 1, or reports that all is
equal. pytorch_store_test.py is the test with the PyTorch of the build. other_pytorch_test.py
runs this program with other versions.
"""

import difflib
import sys

from pytorch_clients import HAS_LIBUV, Clients, ddp_store, pytorch_store, torch
from store_stories import DIFFERENCES, NOT_TOLD, STORIES


def servers():
    """Returns the kinds of server that this PyTorch has, and the option that chooses each."""
    return {"libuv": True, "poll": False} if HAS_LIBUV else {"poll": None}


def tell(story, port):
    clients = Clients(port)
    story(clients)
    return [line for _, lines in sorted(clients.lines.items()) for line in lines]


def as_ours(story, kind, theirs):
    """Returns their transcript with the lines of DIFFERENCES replaced. Each of these must be
    there."""
    lines = list(theirs)
    for beginning, replacement, _ in DIFFERENCES[kind].get(story, []):
        places = [i for i, line in enumerate(lines) if line.startswith(beginning)]
        if not places:
            raise LookupError(f"no line begins with {beginning!r}")
        lines[places[0]] = replacement
    return lines


def differences(story, binaries, *options):
    """Returns how a ddp-store with these options differs from PyTorch's own servers: lines of
    a diff."""
    with ddp_store(binaries, *options) as store:
        ours = tell(story, store.port)
    found = []
    for kind, use_libuv in servers().items():
        if story in NOT_TOLD[kind]:
            continue
        with pytorch_store(use_libuv) as port:
            theirs = tell(story, port)
        try:
            expected = as_ours(story, kind, theirs)
        except LookupError as error:
            expected = theirs
            found.append(f"{story.__name__}, {kind}: DIFFERENCES is out of date: {error}")
        found += difflib.unified_diff(
            expected, ours, f"PyTorch's {kind} server, {story.__name__}", "ddp-store", lineterm="",
            n=1)
    return found


def main():
    status = 0
    for story in STORIES:
        for line in differences(story, *sys.argv[1:]):
            print(line)
            status = 1
    print("differences" if status else "equal", "for PyTorch", torch.__version__)
    return status


if __name__ == "__main__":
    sys.exit(main())
