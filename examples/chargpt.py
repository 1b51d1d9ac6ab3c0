"""examples/chargpt.cc in plain PyTorch: nothing here needs ddprun.

    torchrun --standalone --nproc-per-node=2 examples/chargpt.py --data=shakespeare.txt

It has the same net with the same names, the same batches, and the same options, except those for
checkpoints, and --sample. If one program loads (--init) the first weights of the other
(--save-init), both take the same steps, up to rounding.
"""
import argparse
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chargpt.py",
                                     description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", required=True, type=pathlib.Path,
                        help="the text, in UTF-8; its last tenth is for validation")
    parser.add_argument("--steps", default=2000, type=int, help="number of optimizer steps")
    parser.add_argument("--batch-size", default=12, type=int,
                        help="blocks of all workers in a step")
    parser.add_argument("--block", default=64, type=int, help="characters that the net sees")
    parser.add_argument("--layers", default=4, type=int,
                        help="number of layers of attention and MLP")
    parser.add_argument("--heads", default=4, type=int, help="number of attention heads in a layer")
    parser.add_argument("--width", default=128, type=int, help="channels of a character")
    parser.add_argument("--lr", default=1e-3, type=float,
                        help="the highest learning rate; it falls to a tenth")
    parser.add_argument("--lr-warmup", default=100, type=int, help="steps in which the rate rises")
    parser.add_argument("--lr-decay-steps", default=0, type=int,
                        help="steps after which it has fallen; 0: all")
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"],
                        help="with cuda, one GPU for each rank")
    parser.add_argument("--backend", help="of torch.distributed; ddprun needs the package ddprun; "
                                          "default: nccl with cuda, else gloo")
    parser.add_argument("--eval-every", default=250, type=int, help="steps between validations")
    parser.add_argument("--metrics", type=pathlib.Path,
                        help="file to which a line of JSON is added for each validation")
    parser.add_argument("--init", type=pathlib.Path, help="state dict of the first weights")
    parser.add_argument("--save-init", type=pathlib.Path, help="file for the first weights")
    parser.add_argument("--breakdown", action="store_true",
                        help="measure --steps steps, without validation, and print their times as "
                             "a line of JSON")
    parser.add_argument("--warmup", default=10, type=int,
                        help="steps before those that --breakdown measures")
    return parser.parse_args()


class Blocks(Dataset):
    """A dataset of blocks of characters. The target of each character is the one after it."""

    def __init__(self, ids: torch.Tensor, length: int, stride: int) -> None:
        self.windows = ids.unfold(0, length + 1, stride)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list):
        windows = self.windows.index_select(0, torch.tensor(indices))
        return windows[:, :-1], windows[:, 1:]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        parts = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2],
                                                        is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(count, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, options.width)
        self.position = nn.Embedding(options.block, options.width)
        self.layers = nn.ModuleList(Layer(options.width, options.heads)
                                    for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        spread = 0.02
        for name, parameter in self.named_parameters():
            adds = name.endswith(("attention.out.weight", "down.weight"))
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() >= 2:
                nn.init.normal_(parameter, 0,
                                spread / math.sqrt(2 * options.layers) if adds else spread)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.token.weight)


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def make_optimizer(net: Gpt, lr: float) -> torch.optim.AdamW:
    matrices = [parameter for parameter in net.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in net.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.99))


def make_schedule(optimizer: torch.optim.Optimizer, options: argparse.Namespace, steps: int):
    warmup, end = options.lr_warmup, max(steps, options.lr_decay_steps)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(end - warmup, 1),
                                                      eta_min=options.lr / 10)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])


def endless(blocks: Blocks, sampler: DistributedSampler, batch_size: int):
    """Yields the batches of one epoch after another, without end."""
    loader = DataLoader(blocks, batch_sampler=BatchSampler(sampler, batch_size, drop_last=True),
                        collate_fn=lambda batch: batch)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def device_of_rank(options: argparse.Namespace) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


class Training:
    def __init__(self, options: argparse.Namespace, rank: int, world_size: int) -> None:
        self.options, self.rank, self.world_size = options, rank, world_size
        text = options.data.read_bytes().decode()
        places = {character: place for place, character in enumerate(sorted(set(text)))}
        ids = torch.tensor([places[character] for character in text])
        border = len(ids) * 9 // 10
        blocks = Blocks(ids[:border], options.block, 1)
        self.validation = Blocks(ids[border:], options.block, options.block)
        self.steps = options.warmup + options.steps if options.breakdown else options.steps

        torch.manual_seed(options.seed)
        self.device = device_of_rank(options)
        self.net = Gpt(len(places), options)
        if options.init:
            self.net.load_state_dict(torch.load(options.init))
        if options.save_init and rank == 0:
            torch.save(self.net.state_dict(), options.save_init)
        self.net.to(self.device)
        self.model = self.net
        if world_size > 1:
            self.model = nn.parallel.DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        self.optimizer = make_optimizer(self.net, options.lr)
        self.schedule = make_schedule(self.optimizer, options, self.steps)
        sampler = DistributedSampler(blocks, world_size, rank, seed=options.seed, drop_last=True)
        self.batches = endless(blocks, sampler, options.batch_size // world_size)

    def run(self) -> None:
        options, step, losses, start = self.options, 0, [], time.monotonic()
        spent = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)
        while step < self.steps:
            if step == options.warmup:
                spent = dict.fromkeys(spent, 0.0)
            losses.append(self.take_step(spent))
            step += 1
            if not options.breakdown and (step % options.eval_every == 0 or step == self.steps):
                self.report(step, losses, start)
                losses, start = [], time.monotonic()
        if options.breakdown and self.rank == 0:
            milliseconds = {phase: 1000 * seconds / options.steps
                            for phase, seconds in spent.items()}
            rate = options.batch_size * 1000 / sum(milliseconds.values())
            print(json.dumps({"samples_per_second": rate, "breakdown_ms": milliseconds}),
                  flush=True)

    def take_step(self, spent: dict) -> float:
        last = time.monotonic()

        def end(phase: str) -> None:
            nonlocal last
            now = time.monotonic()
            spent[phase] += now - last
            last = now

        data, target = next(self.batches)
        end("data")
        loss = loss_of(self.model(data.to(self.device)), target.to(self.device))
        end("forward")
        self.optimizer.zero_grad()
        loss.backward()
        end("backward")
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        end("optimizer")
        return loss.item()

    @torch.no_grad()
    def report(self, step: int, losses: list, start: float) -> None:
        """Evaluates the net on the last tenth of the text, and reports the losses.

        Each worker computes its share.
        """
        mine = range(self.rank, len(self.validation), self.world_size)
        sums = torch.tensor([sum(losses), len(losses), 0, len(mine)], dtype=torch.float64,
                            device=self.device)
        for first in range(0, len(mine), 64):
            indices = list(mine[first:first + 64])
            data, target = self.validation.__getitems__(indices)
            sums[2] += loss_of(self.net(data.to(self.device)),
                               target.to(self.device)).item() * len(indices)
        if self.world_size > 1:
            dist.all_reduce(sums)
        if self.rank != 0:
            return
        seconds = time.monotonic() - start
        line = {"step": step, "loss": (sums[0] / sums[1]).item(),
                "val_loss": (sums[2] / sums[3]).item(), "seconds": seconds,
                "samples_per_second": len(losses) * self.options.batch_size / seconds}
        print(f"step {step:2}  loss {line['loss']:.4f}  val_loss {line['val_loss']:.4f}  "
              f"samples/s {line['samples_per_second']:.0f}", flush=True)
        if self.options.metrics:
            with self.options.metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch_size % world_size != 0:
        sys.exit(f"chargpt.py: --batch-size {options.batch_size} does not divide by {world_size} "
                 "workers")
    if world_size > 1:
        device = device_of_rank(options)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = options.backend or ("nccl" if device.type == "cuda" else "gloo")
        if "ddprun" in backend:
            import ddprun  # noqa: F401  it registers the backend
        dist.init_process_group(backend)
    Training(options, rank, world_size).run()
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
