"""Two ranks of PyTorch's DistributedDataParallel, and two of ours (ddp_probe), from the same weights on the
same data: the same weights, buffers and optimizer state, bit for bit. Ours come as a checkpoint, which PyTorch
reads as it is. Then train_digits' checkpoint, read and used by PyTorch.

argv: the folder of the programs, the sources. With a third word: a rank of PyTorch's side, which saves there.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import needs

needs.module("torch")
import torch
import torch.distributed as dist

STEPS = 12


def formula(phase: float, sizes: list[int]) -> torch.Tensor:
    """The same numbers as formula() in ddp_probe.cc."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.7 + phase).sin().float().reshape(sizes)


def train(result: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(),
                              torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    with torch.no_grad():
        for phase, parameter in enumerate(net.parameters()):
            parameter.copy_(formula(phase, list(parameter.shape)) * 0.3)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        def loss(part: int) -> torch.Tensor:
            phase = 100 * step + 10 * dist.get_rank() + part
            return torch.nn.functional.mse_loss(model(formula(phase, [4, 6])), formula(phase + 1, [4, 3]))
        optimizer.zero_grad()
        if step % 3 == 2:
            with model.no_sync():
                loss(2).backward()
        loss(0).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, result)
    dist.destroy_process_group()


def run(binaries: pathlib.Path, *program: object) -> str:
    done = subprocess.run([binaries / "ddprun", "--nproc-per-node=2", *map(str, program)], capture_output=True,
                          text=True, timeout=100, env=os.environ | {"PYTHON_EXEC": sys.executable})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest(folder: pathlib.Path) -> dict:
    return torch.load(max(folder.glob("step-*.pt")), weights_only=True)


def same_bits(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
    assert torch.equal(ours.contiguous().flatten().view(torch.uint8), theirs.contiguous().flatten().view(torch.uint8)), \
        f"{name} differs by {(ours.double() - theirs.double()).abs().max()}"


def compare_with_pytorch(binaries: pathlib.Path, sources: pathlib.Path, work: pathlib.Path) -> None:
    run(binaries, __file__, binaries, sources, work / "theirs.pt")
    run(binaries, binaries / "ddp_probe", work / "probe")
    theirs = torch.load(work / "theirs.pt")
    ours = newest(work / "probe")
    assert ours["step"] == STEPS and ours["extra"] == {"loss": "mse"} and ours["optimizer_class"] == "SGD"
    assert list(ours["model"]) != [] and ours["model"].keys() == theirs["model"].keys()
    for name, tensor in theirs["model"].items():
        same_bits(name, ours["model"][name], tensor)
    for index, state in theirs["optimizer"]["state"].items():
        for key, value in state.items():
            same_bits(f"{key} of parameter {index}", ours["optimizer"]["state"][index][key], value)
    print(f"{len(theirs['model'])} tensors of the model and the optimizer's state are equal, bit for bit")


def use_checkpoint_of_train_digits(binaries: pathlib.Path, sources: pathlib.Path, work: pathlib.Path) -> None:
    output = run(binaries, binaries / "train_digits", "--epochs=3", f"--data={sources}/examples/data/digits",
                 f"--checkpoint-dir={work}/digits")
    sys.path.append(str(sources / "examples"))
    import ddp_digits

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            def conv(a: int, b: int) -> torch.nn.Module:
                return torch.nn.Conv2d(a, b, 3, padding=1, bias=False)
            self.features = torch.nn.Sequential(
                conv(1, 16), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), conv(16, 32), torch.nn.BatchNorm2d(32),
                torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.25))
            self.classify = torch.nn.Linear(32 * 4 * 4, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.classify(self.features(images))

    checkpoint = newest(work / "digits")
    net = Net()
    net.load_state_dict(checkpoint["model"])  # strict: the same names
    torch.optim.SGD(net.parameters(), lr=1).load_state_dict(checkpoint["optimizer"])
    accuracy = ddp_digits.accuracy(net, ddp_digits.read_digits(sources / "examples/data/digits", "t10k"))
    said = re.search(r"final accuracy ([\d.]+) %", output)[1]
    assert f"{accuracy:.2f}" == said, (accuracy, said)
    print(f"PyTorch finds the accuracy that train_digits said: {said} %")


def main() -> None:
    binaries, sources = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if len(sys.argv) == 4:
        train(sys.argv[3])
        return
    with tempfile.TemporaryDirectory() as work:
        compare_with_pytorch(binaries, sources, pathlib.Path(work))
        use_checkpoint_of_train_digits(binaries, sources, pathlib.Path(work))


if __name__ == "__main__":
    main()
