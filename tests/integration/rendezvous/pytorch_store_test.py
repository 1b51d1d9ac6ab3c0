#!/usr/bin/env python3
"""Tests PyTorch's own TCPStore client against ddp-store and against PyTorch's own servers.

    pytorch_store_test.py BIN_DIR [unittest arguments]

The answers of the servers must be equal. If PyTorch's own two servers differ,
docs/reference/wire_protocol.md states what ours does, and store_stories.py, which has the calls,
lists it. Also tests ddprun's C++ client against PyTorch's servers. Needs torch; exits with 77
(skipped) without it.
"""

import os
import re
import subprocess
import sys
import threading
import unittest

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch")

import pytorch_clients
import store_transcripts
from pytorch_clients import Told, connect, dist, free_port, pytorch_store
from store_stories import STORIES

BIN = ""  # given on the command line


def ddp_store():
    return pytorch_clients.ddp_store(BIN)


# Members of the stores that no story uses, with the reason.
NOT_TOLD = {"_pybind11_conduit_v1_": "of pybind11, which hands objects from one module to another"}


class SameAsPyTorchsServers(unittest.TestCase):
    def test_transcripts(self):
        for story in STORIES:
            with self.subTest(story=story.__name__):
                found = store_transcripts.differences(story, BIN)
                self.assertFalse(found, "\n".join(found))

    def test_the_stories_call_everything_that_is_public(self):
        """Only calls that succeed count: a call that always raises proves nothing."""
        Told.answered.clear()
        for story in STORIES:
            with ddp_store() as server:
                store_transcripts.tell(story, server.port)
        for store in (dist.TCPStore, dist.PrefixStore):
            public = {name for name in dir(store) if not re.fullmatch("__.*__", name)}
            self.assertEqual(public - Told.answered[store.__name__] - set(NOT_TOLD), set(), store)


class OurStore(unittest.TestCase):
    def test_a_key_that_holds_no_number_ends_the_client_that_adds_and_no_other(self):
        with ddp_store() as server:
            bad, good = connect(server.port), connect(server.port)
            bad.set("text", "abc")
            with self.assertRaises(dist.DistNetworkError):
                bad.add("text", 1)
            with self.assertRaises(dist.DistNetworkError):
                bad.get("text")
            self.assertEqual(good.get("text"), b"abc")
        self.assertRegex(
            server.log,
            r"\Addp-store: warning: store: closed the connection of 127\.0\.0\.1:\d+: "
            r"ADD: the value of the key is not a number\n\Z",
        )

    def test_what_is_too_long_ends_the_client_that_sends_it_and_no_other(self):
        with ddp_store() as server:
            good = connect(server.port)
            for key, value in (("k" * 8192, ""), ("k", "v" * ((8 << 20) + 1))):
                bad = connect(server.port)
                with self.assertRaises(dist.DistNetworkError):
                    bad.set(key, value)
                    bad.get("k")
            self.assertEqual(good.num_keys(), 0)
        self.assertEqual(server.log.count("closed the connection"), 2)

    def test_clients_that_come_before_the_store_get_in(self):
        port = free_port()
        sums = []
        client = threading.Thread(target=lambda: sums.append(connect(port).add("n", 7)))
        client.start()
        server = subprocess.Popen(
            [os.path.join(BIN, "ddp-store"), "--listen", f"127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
        )
        try:
            client.join()
        finally:
            server.terminate()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(sums, [7])


# --- ddprun's C++ client ---


class OurClient(unittest.TestCase):
    maxDiff = None

    def probe(self, port, *known):
        done = subprocess.run(
            [os.path.join(BIN, "store_client_probe"), f"127.0.0.1:{port}", *known],
            stdout=subprocess.PIPE,
            text=True,
            timeout=30,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.splitlines()

    def test_gets_the_same_from_all_servers(self):
        for use_libuv, known in ((True, ["list_keys"]), (False, [])):
            with ddp_store() as ours, pytorch_store(use_libuv) as theirs:
                self.assertEqual(self.probe(ours.port, *known), self.probe(theirs, *known))

    @needs.the_whole
    def test_gets_the_same_under_the_stock_torchrun(self):
        port = free_port()
        known = ["list_keys"]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
            + ["--master-addr", "127.0.0.1", "--master-port", str(port), "--no-python"]
            + ["sh", "-c", 'exec "$0" "$MASTER_ADDR:$MASTER_PORT" "$@"']
            + [os.path.join(BIN, "store_client_probe"), *known],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

        def without_counts(lines):  # torchrun adds its own keys to these counts
            return [line for line in lines if not line.startswith("num_keys")]

        with ddp_store() as ours:
            expected = self.probe(ours.port, *known)
        self.assertEqual(without_counts(done.stdout.splitlines()), without_counts(expected))

    def test_sees_the_keys_of_pytorchs_client(self):
        with ddp_store() as server:
            python = connect(server.port)
            python.set("probe/large", "will be overwritten")
            self.probe(server.port)
            self.assertEqual(python.get("probe/n"), b"-2")
            self.assertEqual(len(python.get("probe/large")), 8 << 20)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
