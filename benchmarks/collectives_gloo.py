#!/usr/bin/env python3
"""A rank of PyTorch's gloo for benchmarks/collectives.py.

Its orders and answers are those of round_server.h.

    collectives_gloo.py --driver PATH --rank R --ranks N --meet URL [--longest BYTES]
"""

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist

from round_server import serve_rounds


class GlooRank:
    def __init__(self, ranks: int, longest: int) -> None:
        self.ranks = ranks
        self.one = torch.zeros(longest // 4)
        self.other = torch.zeros(longest // 4)

    def prepare(self, call: str, sizes: list):
        """Returns the call to repeat; None: gloo has no such call."""
        size = sizes[0] if sizes else 0
        whole, to = self.one[: size // 4], self.other[: size // 4]
        share = self.other[: size // 4 // self.ranks]
        return {
            "all_reduce": lambda: dist.all_reduce(whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, share),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, whole),
            "all_to_all": lambda: dist.all_to_all_single(to, whole),
            "barrier": lambda: dist.barrier(),
        }.get(call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meet", required=True, help="init_method")
    parser.add_argument("--longest", type=int, default=100 << 20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=options.meet, rank=options.rank,
                            world_size=options.ranks)
    rank = GlooRank(options.ranks, options.longest)
    serve_rounds(options.driver, options.rank, rank.prepare, dist.barrier)


if __name__ == "__main__":
    main()
