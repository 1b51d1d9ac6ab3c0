"""Tests workers of worker_lib under the stock torchrun. argv[1]: the folder of the programs.

Rank 1 of the first generation kills itself. torchrun starts both ranks again, on the same
store. The store still has the addresses of the dead ranks.
"""
import subprocess
import sys

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402


def main() -> None:
    needs.module("torch")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
        "--no-python", f"{sys.argv[1]}/worker_test_rank", "die_once",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    print(result.stdout, result.stderr)
    assert result.returncode == 0, result.returncode
    assert result.stdout.count("ready in generation 0") == 2
    assert result.stdout.count("ready in generation 1") == 2
    assert result.stdout.count("sum 1 on node 0") == 2


main()
