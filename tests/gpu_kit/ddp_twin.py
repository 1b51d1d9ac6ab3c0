"""Trains what `gpu_probe ddp` trains, with PyTorch's DistributedDataParallel: ddp_twin.py FILE.

Weights, data and steps come from the same formulas. Rank 0 writes the state dict into FILE.
"""
import os
import sys

import torch
import torch.distributed as dist

STEPS = 50


def formula(phase, sizes, device):
    count = torch.Size(sizes).numel()
    values = (torch.arange(count, dtype=torch.float64) * 0.7 + phase).sin().float()
    return values.reshape(sizes).to(device)


def main():
    on_gpu = torch.cuda.is_available()
    device = (torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
              if on_gpu else torch.device("cpu"))
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64),
                              torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with torch.no_grad():
        for phase, parameter in enumerate(net.parameters()):
            parameter.copy_(formula(phase, list(parameter.shape), "cpu") * 0.2)
    net.to(device)
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        phase = 100 * step + 10 * rank
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(formula(phase, [8, 16], device)),
                                     formula(phase + 1, [8, 4], device)).backward()
        optimizer.step()
    if rank == 0:
        torch.save({name: value.cpu() for name, value in net.state_dict().items()}, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
