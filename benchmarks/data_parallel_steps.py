#!/usr/bin/env python3
"""A rank of PyTorch's DistributedDataParallel for data_parallel.py and python_collectives.py.

It does the same as data_parallel_steps.cc, in Python. It has one more call: "floor" is a step with
DistributedDataParallel whose hook sends nothing, with one barrier at the last bucket. No backend
can be faster.

    data_parallel_steps.py --driver PATH --rank R --ranks N --meet URL [--backend NAME]
"""

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist

from round_server import serve_rounds


def send_nothing(_, bucket):
    if bucket.is_last():
        dist.barrier()
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class StepsRank:
    def __init__(self) -> None:
        self.made = {}

    def prepare(self, call: str, sizes: list):
        """Returns the call to repeat; None: there is no such call."""
        width, layers, samples = sizes
        if call not in ("plain", "ddp", "floor", "reduce"):
            return None
        if (call, *sizes) not in self.made:
            self.made[call, *sizes] = self.make(call, width, layers, samples)
        return self.made[call, *sizes]

    def make(self, call: str, width: int, layers: int, samples: int):
        parts = []
        for layer in range(layers):
            parts += [torch.nn.ReLU()] * (layer > 0) + [torch.nn.Linear(width, width)]
        net = torch.nn.Sequential(*parts)
        if call == "reduce":
            gradients = torch.zeros(sum(one.numel() for one in net.parameters()))
            return lambda: dist.all_reduce(gradients)
        torch.manual_seed(dist.get_rank())
        data = torch.randn(samples, width)
        target = torch.randn_like(data)
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        model = (net if call == "plain"
                 else torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True))
        if call == "floor":
            model.register_comm_hook(None, send_nothing)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data), target).backward()
            optimizer.step()
        return step


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--driver", "--meet"):
        parser.add_argument(name, required=True)
    for name in ("--rank", "--ranks"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--backend", default="gloo")
    options = parser.parse_args()
    if options.backend == "ddprun":
        import ddprun  # noqa: F401  it registers the backend
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, init_method=options.meet, rank=options.rank,
                            world_size=options.ranks)
    serve_rounds(options.driver, options.rank, StepsRank().prepare, dist.barrier)


if __name__ == "__main__":
    main()
