"""A program of wheel_test.py --pytorch. It runs in an environment that has the wheel, and perhaps
PyTorch.

argv: "launch" starts two ranks of this module, and prints what they return. "backend" uses the
backend "ddprun" on two ranks.
"""
import faulthandler
import sys

import ddprun


def rank_and_step() -> tuple:
    ddprun.report_progress(7)
    return ddprun.Environment.current().rank, ddprun.restart_count()


def try_backend() -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    import torch
    import torch.distributed as dist
    dist.init_process_group("ddprun")
    mine = dist.get_rank() + 1.0
    total = torch.tensor([mine])
    dist.all_reduce(total)
    assert total.item() == 3, total
    every = [None, None]
    dist.all_gather_object(every, mine)
    assert every == [1, 2], every
    print("collectives", flush=True)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    net(torch.full((2, 4), mine)).sum().backward()
    assert net.module.weight.grad.tolist() == [[3] * 4], net.module.weight.grad
    print("DistributedDataParallel", flush=True)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    if sys.argv[1] == "backend":
        try_backend()
    else:
        import wheel_pytorch
        print(ddprun.launch(wheel_pytorch.rank_and_step, nproc_per_node=2, quiet=True))
