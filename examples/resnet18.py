"""ResNet-18 with PyTorch's own DistributedDataParallel: the same as resnet18.cc, to compare both.

    torchrun --standalone --nproc-per-node=2 examples/resnet18.py
    ddprun --standalone --nproc-per-node=2 examples/resnet18.py --compare-with=run1

Nothing here needs ddprun. The options are those of examples/resnet18.cc. --compare-with names
the folder that --record of that program has written. Then this program takes the same steps from
the same weights on the same batches, and prints a line that continues the other program's table.
Batch norm is the plain one, because PyTorch has no SyncBatchNorm for CPUs.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from ddp_digits import BACKEND_HELP, HERE, accuracy, form_world, jittered, read_digits

MOMENTUM, WEIGHT_DECAY, GAMMA = 0.9, 5e-4, 0.85


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=HERE / "data/digits", type=pathlib.Path,
                        help="folder of IDX files")
    parser.add_argument("--epochs", default=12, type=int)
    parser.add_argument("--batch-size", default=32, type=int,
                        help="images of each worker in a step")
    parser.add_argument("--lr", default=0.05, type=float)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"],
                        help="with cuda, one GPU for each rank")
    parser.add_argument("--backend", help=f"{BACKEND_HELP}; default: nccl with cuda, else gloo")
    parser.add_argument("--width", default=16, type=int,
                        help="channels of the first of the four stages; 64 is ResNet-18")
    parser.add_argument("--batch-norm", default="plain", choices=["plain"])
    parser.add_argument("--compare-with", type=pathlib.Path,
                        help="folder that resnet18 --compare --record has written")
    parser.add_argument("--breakdown", action="store_true",
                        help="take --steps steps instead, and print where their time is spent")
    parser.add_argument("--steps", default=30, type=int)
    parser.add_argument("--warmup", default=5, type=int,
                        help="steps before these, which are not timed")
    return parser.parse_args()


class BasicBlock(torch.nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(after)
        self.conv2 = torch.nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(after)
        self.downsample = None
        if before != after or stride != 1:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return relu(y, inplace=True)


class ResNet18(torch.nn.Module):
    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()

        def stage(before: int, after: int, stride: int) -> torch.nn.Module:
            return torch.nn.Sequential(BasicBlock(before, after, stride),
                                       BasicBlock(after, after, 1))
        self.conv1 = torch.nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.fc = torch.nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = relu(self.bn1(self.conv1(images)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Gathered(Dataset):
    """A dataset in which a batch is one gather, as in C++, not many images that are stacked."""

    def __init__(self, digits: TensorDataset) -> None:
        self.images, self.labels = digits.tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.tensor(rows)
        return self.images.index_select(0, places), self.labels.index_select(0, places)


def device_of_rank(options: argparse.Namespace) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.train = read_digits(options.data, "train")
        images, labels = self.train.tensors
        torch.manual_seed(options.seed)
        self.device = device_of_rank(options)
        self.net = ResNet18(images.size(1), options.width, int(labels.max()) + 1).to(self.device)
        if options.compare_with:
            self.net.load_state_dict(torch.load(options.compare_with / "initial.pt",
                                                weights_only=True), strict=True)
        self.model = DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), options.lr, MOMENTUM,
                                         weight_decay=WEIGHT_DECAY)
        self.sampler = DistributedSampler(self.train, seed=options.seed)
        # A generator of its own. Otherwise the loader would draw a number in each epoch from the
        # generator that moves the images.
        self.loader = DataLoader(Gathered(self.train), options.batch_size, sampler=self.sampler,
                                 drop_last=True, collate_fn=lambda batch: batch,
                                 generator=torch.Generator())
        torch.manual_seed(options.seed + dist.get_rank())

    def epoch(self, number: int):
        self.sampler.set_epoch(number)
        for images, labels in self.loader:
            yield jittered(images).to(self.device), labels.to(self.device)

    def batches(self):
        return itertools.chain.from_iterable(map(self.epoch, itertools.count()))

    def loss_of(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(images), labels)

    def change_weights(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        loss = self.loss_of(images, labels)
        loss.backward()
        self.change_weights()
        return loss.item()


def train(options: argparse.Namespace) -> None:
    training = Training(options)
    test = TensorDataset(*(part.to(training.device)
                           for part in read_digits(options.data, "t10k").tensors))
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, GAMMA)
    for number in range(options.epochs):
        start = time.monotonic()
        losses = [training.step(*batch) for batch in training.epoch(number)]
        took = time.monotonic() - start
        schedule.step()
        mean = torch.tensor(sum(losses) / len(losses) / dist.get_world_size(), dtype=torch.float64,
                            device=training.device)
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            rate = len(losses) * options.batch_size * dist.get_world_size() / took
            print(f"epoch {number + 1:2}  accuracy {accuracy(training.net, test) / 100:.4f}  loss "
                  f"{mean:.4f}  samples/s {rate:.0f}", flush=True)


def compare(options: argparse.Namespace) -> None:
    try:
        record = json.loads((options.compare_with / "run.json").read_text())
    except OSError as error:
        sys.exit(f"resnet18.py: no record of resnet18 --compare --record: {error}")
    for name in ("batch_size", "lr", "seed", "steps", "warmup", "width"):
        setattr(options, name, record[name])
    options.data = pathlib.Path(record["data"])
    torch.set_num_threads(record["threads"])
    if record["batch_norm"] != "plain":
        sys.exit("resnet18.py: the other run had --batch-norm=sync, which PyTorch has not for "
                 "CPUs; repeat it with plain")
    if record["workers"] != dist.get_world_size():
        sys.exit(f"resnet18.py: {dist.get_world_size()} workers, but the other run had "
                 f"{record['workers']}")
    training = Training(options)
    losses, ms = [], []
    for batch in itertools.islice(training.batches(), options.warmup + options.steps):
        dist.barrier()
        start = time.perf_counter()
        losses.append(training.step(*batch))
        ms.append(1000 * (time.perf_counter() - start))
    if dist.get_rank() != 0:
        return
    ddp = record["averagings"]["ddp"]
    median = statistics.median(ms[options.warmup:])
    print(f"pytorch    {losses[0]:10.4f}  {losses[-1]:9.4f}  {median:9.2f}  "
          f"{median / ddp['ms']:8.2f}")
    if losses == ddp["losses"]:
        print(f"losses: the same bits in all {len(losses)} steps")
    else:
        print("losses: apart by at most "
              f"{max(abs(a - b) for a, b in zip(losses, ddp['losses'])):.3g}")


def timed_steps(training: Training, batches, steps: int) -> dict[str, float]:
    """Takes `steps` steps. Returns the milliseconds of each phase in the mean step."""
    sums = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)

    def end(phase: str) -> None:
        nonlocal last
        now = time.perf_counter()
        sums[phase] += now - last
        last = now
    last = time.perf_counter()
    for _ in range(steps):
        batch = next(batches)
        end("data")
        loss = training.loss_of(*batch)
        end("forward")
        loss.backward()
        end("backward")
        training.change_weights()
        end("optimizer")
    return {phase: 1000 * seconds / max(steps, 1) for phase, seconds in sums.items()}


def breakdown(options: argparse.Namespace) -> None:
    training = Training(options)
    batches = training.batches()
    timed_steps(training, batches, options.warmup)
    dist.barrier()
    start = time.perf_counter()
    parts = timed_steps(training, batches, options.steps)
    if training.device.type == "cuda":
        torch.cuda.synchronize(training.device)
    took = time.perf_counter() - start
    with training.model.no_sync():
        timed_steps(training, batches, 1)
        quiet = timed_steps(training, batches, options.steps)
    parts["exposed_communication"] = parts["backward"] - quiet["backward"]
    if dist.get_rank() == 0:
        samples = options.steps * options.batch_size * dist.get_world_size()
        print(json.dumps({"samples_per_second": samples / took, "breakdown_ms": parts}), flush=True)


def main() -> None:
    options = parse_arguments()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    device = device_of_rank(options)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    form_world(options.backend or ("nccl" if device.type == "cuda" else "gloo"))
    if options.compare_with:
        compare(options)
    elif options.breakdown:
        breakdown(options)
    else:
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
