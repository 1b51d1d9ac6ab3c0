"""Continues a training that examples/resume_in_python.cc has begun: plain PyTorch, without ddprun.

    resume_in_python --checkpoint-dir=run1
    python3 examples/resume_in_python.py run1

For the epochs after the checkpoint it prints the same lines as the C++ program.
"""
import argparse
import json
import pathlib

import torch
from torch.utils.data import DataLoader, DistributedSampler

import ddp_digits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=pathlib.Path, help="--checkpoint-dir of resume_in_python")
    parser.add_argument("--data", default=ddp_digits.HERE / "data/digits", type=pathlib.Path,
                        help="the same folder of IDX files")
    options = parser.parse_args()
    if not list(options.directory.glob("step-*.json")):
        parser.error(f"there is no checkpoint in {options.directory}")
    return options


def newest_checkpoint(directory: pathlib.Path) -> pathlib.Path:
    """Returns the file of the newest checkpoint.

    A checkpoint exists if its manifest exists. The manifest names the file.
    """
    manifest = max(directory.glob("step-*.json"))
    return directory / json.loads(manifest.read_text())["files"][0]["name"]


def make_net(pixels: int) -> torch.nn.Module:
    """Returns the net of make_net() in resume_in_python.cc, with the same parameter names."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(pixels, 64), torch.nn.ReLU(),
                               torch.nn.Dropout(0.25), torch.nn.Linear(64, 10))


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    train = ddp_digits.read_digits(options.data, "train")
    test = ddp_digits.read_digits(options.data, "t10k")
    file = newest_checkpoint(options.directory)
    state = torch.load(file, weights_only=True)

    net = make_net(train.tensors[0][0].numel())
    net.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)  # the state also has its options
    optimizer.load_state_dict(state["optimizer"])
    sampler = DistributedSampler(train, num_replicas=1, rank=0, seed=state["sampler"]["seed"])
    # A loader that makes batches draws a number for its workers, even if it has none. With a
    # generator of its own it does not draw from the generator of dropout.
    loader = DataLoader(train, batch_size=state["extra"]["batch_size"], sampler=sampler,
                        generator=torch.Generator())
    torch.set_rng_state(state["rng"][0]["cpu"])
    print(f"resumed after epoch {state['epoch']} from {file}")

    for epoch in range(state["epoch"], state["extra"]["epochs"]):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        print(f"epoch {epoch + 1:2}  loss {total / len(train):.9f}  test accuracy "
              f"{ddp_digits.accuracy(net, test):.2f} %")


if __name__ == "__main__":
    main()
