"""PyTorch's own DistributedDataParallel on handwritten digits: nothing here needs ddprun.

    ddprun --standalone --nproc-per-node=2 --max-restarts=3 \\
        examples/ddp_digits.py --checkpoint-dir=run1

The options are those of examples/train_digits.cc. A job that was killed continues from its newest
checkpoint, and ends with the same bits as one that was not killed.
"""
import argparse
import hashlib
import os
import pathlib
import signal
import struct
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HERE = pathlib.Path(__file__).resolve().parent
BACKEND_HELP = "of torch.distributed; ddprun needs the package ddprun"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=HERE / "data/digits", type=pathlib.Path,
                        help="folder of IDX files")
    parser.add_argument("--epochs", default=15, type=int)
    parser.add_argument("--batch-size", default=32, type=int,
                        help="images of each worker in a step")
    parser.add_argument("--lr", default=0.05, type=float)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--backend", default="gloo", help=BACKEND_HELP)
    parser.add_argument("--checkpoint-dir", type=pathlib.Path, help="none: no checkpoints")
    parser.add_argument("--checkpoint-every", default=20, type=int,
                        help="steps between checkpoints")
    parser.add_argument("--digest-file", type=pathlib.Path, help="SHA-256 of the final weights")
    parser.add_argument("--crash-rank", default=-1, type=int,
                        help="this rank kills itself, in the first start only")
    parser.add_argument("--crash-step", default=-1, type=int,
                        help="number of steps after which it does")
    return parser.parse_args()


def read_idx(path: pathlib.Path) -> torch.Tensor:
    """Reads an array of bytes in MNIST's format.

    The format is: 0, 0, type 8, number of sizes; the sizes; the bytes.
    """
    content = path.read_bytes()
    zeros, kind, dimensions = struct.unpack_from(">HBB", content)
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is not an IDX file of bytes")
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8,
                            offset=4 + 4 * dimensions).reshape(sizes)


def read_digits(folder: pathlib.Path, part: str) -> TensorDataset:
    images = read_idx(folder / f"{part}-images-idx3-ubyte").unsqueeze(1).float() / 255
    return TensorDataset(images, read_idx(folder / f"{part}-labels-idx1-ubyte").long())


def make_net(height: int, width: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.25),
        torch.nn.Linear(32 * (height // 2) * (width // 2), 10))


def jittered(images: torch.Tensor) -> torch.Tensor:
    """Returns the images, half of them moved by at most one pixel in each direction.

    PyTorch's default generator chooses them anew at each call.
    """
    count, _, height, width = images.shape
    windows = torch.nn.functional.pad(images, (1, 1, 1, 1)).unfold(2, height, 1).unfold(3, width, 1)
    moved = torch.rand(count, 1) < 0.5
    place = torch.where(moved, torch.randint(0, 3, (count, 2)), 1)
    return windows[torch.arange(count), :, place[:, 0], place[:, 1]]


def digest_of(net: torch.nn.Module) -> str:
    """Returns the SHA-256 of all parameters and buffers, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()


def form_world(backend: str) -> None:
    if "ddprun" in backend:
        import ddprun  # noqa: F401  it registers the backend
    dist.init_process_group(backend)


def accuracy(net: torch.nn.Module, digits: TensorDataset) -> float:
    images, labels = digits.tensors
    net.eval()
    with torch.no_grad():
        right = (net(images).argmax(1) == labels).double().mean().item()
    net.train()
    return 100 * right


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    form_world(options.backend)
    rank = dist.get_rank()

    train, test = read_digits(options.data, "train"), read_digits(options.data, "t10k")
    net = make_net(*train.tensors[0].shape[2:])
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    sampler = DistributedSampler(train, seed=options.seed)
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)

    step = 0
    checkpoint = options.checkpoint_dir and options.checkpoint_dir / "newest.pt"
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if rank == 0:
            print(f"resumed at step {step}", flush=True)
    model = DistributedDataParallel(net)

    def save() -> None:
        if not checkpoint or rank != 0:
            return
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        unfinished = checkpoint.with_suffix(".unfinished")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                   unfinished)
        os.replace(unfinished, checkpoint)

    for epoch in range(step // len(loader), options.epochs):
        sampler.set_epoch(epoch)
        start, loss_sum, samples = time.monotonic(), 0.0, 0
        for number, (images, labels) in enumerate(loader):
            if epoch * len(loader) + number < step:
                continue  # it was done before the restart
            # Dropout and jitter depend only on seed, step, world size and rank. So a resumed job
            # draws the same numbers as one that was not killed.
            torch.manual_seed((options.seed * 1_000_003 + step) * dist.get_world_size() + rank)
            optimizer.param_groups[0]["lr"] = options.lr * (
                1 - step / (options.epochs * len(loader)))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(jittered(images)), labels)
            loss.backward()
            optimizer.step()
            step += 1
            loss_sum, samples = loss_sum + loss.item() * len(labels), samples + len(labels)
            if rank == options.crash_rank and step == options.crash_step \
                    and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            if step % options.checkpoint_every == 0:
                save()
        sums = torch.tensor([loss_sum, samples], dtype=torch.float64)
        dist.all_reduce(sums)
        seconds = time.monotonic() - start
        if rank == 0 and sums[1] > 0:
            print(f"epoch {epoch + 1:2}  loss {sums[0] / sums[1]:.4f}  test accuracy "
                  f"{accuracy(net, test):.2f} %  {sums[1] / seconds:.0f} samples/s", flush=True)
    if step % options.checkpoint_every != 0:
        save()

    if rank == 0:
        digest = digest_of(net)
        print(f"final accuracy {accuracy(net, test):.2f} %\nsha256 {digest}", flush=True)
        if options.digest_file:
            options.digest_file.write_text(digest + "\n")
    # Without it a rank could end while a thread of gloo still holds a tensor of the last
    # collective. PyTorch aborts such a rank.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
