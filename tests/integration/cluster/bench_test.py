"""Runs ddprun bench with three agents on this host, and in namespaces of which one has a slow link.

argv[1]: the folder of the programs, argv[2]: that of a double of the CUDA driver. The second part
needs root and DDPRUN_TESTBED.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = pathlib.Path(sys.argv.pop(1)).resolve()
CUDA_DOUBLE = sys.argv.pop(1)
NODES = 3
PATIENCE = 120  # seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bench(endpoint: str, prefix=lambda node: [], arguments=(),
          variables=lambda node: {}) -> list[tuple[int, str, str]]:
    """Runs an agent for each node. Returns exit code, output and errors of each."""
    agents = [subprocess.Popen(
        [*prefix(node), PROGRAMS / "ddprun", "bench", f"--nnodes={NODES}", f"--node-rank={node}",
         f"--rdzv-endpoint={endpoint}", "--rdzv-id=bench", "--", "--max-bytes", "65536",
         *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **variables(node)})
        for node in range(NODES)]
    ends = []
    for agent in agents:
        out, err = agent.communicate(timeout=PATIENCE)
        ends.append((agent.returncode, out, err))
    return ends


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-bench-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_three_nodes_are_measured_and_none_fails(self):
        file = self.folder / "bench.json"
        ends = bench(f"127.0.0.1:{free_port()}", arguments=["--json", file])
        self.assertEqual([code for code, _, _ in ends], [0] * NODES, ends)
        text = "".join(out for _, out, _ in ends)
        self.assertIn("all_reduce of 3 ranks:", text)
        report = json.loads(file.read_text())
        self.assertEqual(report["ranks"], NODES)
        self.assertEqual([one["bytes"] for one in report["all_reduce"]], [1 << 10, 1 << 14])
        for node, of_node in enumerate(report["nodes"]):
            self.assertEqual(of_node["host"], socket.gethostname())
            self.assertGreater(of_node["memory_bytes_per_s"], 1e8)
            self.assertNotIn("gpus", of_node)
            for other in range(NODES):
                link = report["link_bytes_per_s"][node][other]
                latency = report["latency_s"][node][other]
                self.assertTrue(other == node or (link > 1e6 and 0 < latency < 1), report)

    def test_a_slow_gpu_and_one_with_a_fault_are_found(self):
        file = self.folder / "bench.json"
        faults = ["", "slow-copy@1", "wrong-product@0"]
        ends = bench(f"127.0.0.1:{free_port()}", arguments=["--json", file],
                     variables=lambda node: {"LD_LIBRARY_PATH": CUDA_DOUBLE,
                                             "DDPRUN_TEST_GPUS": "1b,9d",
                                             "DDPRUN_TEST_CUDA": faults[node]})
        self.assertEqual([code for code, _, _ in ends], [0] * NODES, ends)
        nodes = json.loads(file.read_text())["nodes"]
        self.assertEqual([node["gpus"] for node in nodes], [2] * NODES)
        self.assertLess(nodes[1]["gpu_memory_bytes_per_s"], 27e6)  # 512 KiB in 20 ms
        self.assertGreater(nodes[0]["gpu_memory_bytes_per_s"], 1e8)
        self.assertGreater(nodes[0]["gpu_multiplies_per_s"], 1e5)
        text = "".join(out for _, out, _ in ends)
        self.assertIn("GPUs     GPU copy  GPU multiply", text)
        self.assertRegex(text, r"node 1 \(.*\): its slowest GPU copies 0\.0\d+ GB/s")
        self.assertNotRegex(text, r"node [02] \(.*\): its slowest GPU copies")
        self.assertRegex(text, r"node 2 \(.*\): gpu 0 \(0000:1b:00\.0\): a known product gave")

    def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(self):
        file = self.folder / "missing" / "bench.json"
        run = subprocess.run([PROGRAMS / "ddprun", "bench", "--standalone", "--", "--json", file],
                             capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((run.returncode, run.stdout), (73, ""), run.stderr)
        self.assertIn(f"write {file}: No such file or directory", run.stderr)

    def test_a_wrong_value_is_named_and_ends_with_2(self):
        run = subprocess.run([PROGRAMS / "ddprun", "bench", "--standalone", "--", "--max-bytes",
                              "1"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("--max-bytes", run.stderr)

    @unittest.skipUnless(os.geteuid() == 0 and "DDPRUN_TESTBED" in os.environ,
                         "needs root and DDPRUN_TESTBED")
    def test_a_slow_link_is_found(self):
        cluster = pathlib.Path(os.environ["DDPRUN_TESTBED"]) / "netns-cluster"
        subprocess.run([cluster, "up", str(NODES)], check=True)
        self.addCleanup(subprocess.run, [cluster, "down"], check=True)
        subprocess.run([cluster, "shape", "node1", "rate", "100mbit"], check=True)
        ends = bench("node0:29400", lambda node: [cluster, "exec", f"node{node}"])
        self.assertEqual([code for code, _, _ in ends], [0] * NODES, ends)
        text = "".join(out for _, out, _ in ends)
        self.assertRegex(text, r"node 1 \(node1\): its links carry 0\.0\d+ GB/s")
        self.assertNotRegex(text, r"node [02] \(node.\): its links")


unittest.main()
