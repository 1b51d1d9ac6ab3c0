"""Compares PyTorch's DistributedDataParallel over gloo with ours (ddp_probe.cc).

Both have the same number of ranks, and start from the same weights on the same data.

- Two ranks with SGD: the same weights, buffers and optimizer state, bit for bit.
- AdamW, which LibTorch itself computes a little differently than Python, and four ranks, whose
  gradients gloo sums in another order: weights and buffers are within 1e-6 of each tensor's
  greatest value. For running means this is the spread of the values that they average. The
  optimizer's running averages of gradients are sums that nearly cancel by then. They are
  within 1e-4.

Our results are checkpoints, which PyTorch reads unchanged. Last, PyTorch reads and uses a
checkpoint of train_digits.

argv: the folder of the programs, the sources. With a third argument: a rank of PyTorch's side,
which saves there.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch")
import torch
import torch.distributed as dist

STEPS = 50


def formula(phase: float, sizes: list[int]) -> torch.Tensor:
    """Returns the numbers of formula() in ddp_probe.cc."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.7 + phase).sin().float().reshape(sizes)


# The nets of ddp_probe.cc. A place is (step, rank, part).
def phase_of(place: tuple[int, int, int]) -> int:
    step, rank, part = place
    return 100 * step + 10 * rank + part


class Layers(torch.nn.Module):
    def __init__(self, sizes: list[int], *layers: torch.nn.Module) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, place: tuple[int, int, int]) -> torch.Tensor:
        return self.layers(formula(phase_of(place), self.sizes))


def mlp() -> torch.nn.Module:
    return Layers([4, 6], torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32),
                  torch.nn.ReLU(), torch.nn.Linear(32, 3))


def convnet() -> torch.nn.Module:
    def conv(a: int, b: int) -> torch.nn.Module:
        return torch.nn.Conv2d(a, b, 3, bias=False)
    return Layers([4, 1, 8, 8], conv(1, 4), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), conv(4, 8),
                  torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
                  torch.nn.Linear(128, 3))


class Words(torch.nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 8, sparse=sparse)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, place: tuple[int, int, int]) -> torch.Tensor:
        indices = (torch.arange(12) * 7 + place[0] * 3 + place[1] * 5) % 20
        return self.out(self.words(indices.reshape(4, 3)).mean(1))


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(6, 16)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(16, 3) for _ in range(3))

    def forward(self, place: tuple[int, int, int]) -> torch.Tensor:
        x = torch.tanh(self.trunk(formula(phase_of(place), [4, 6])))
        return self.branches[(place[0] + place[1]) % 3](x)


CASES = {"mlp": (mlp, 1), "accumulation": (mlp, 3), "convnet": (convnet, 1),
         "embedding": (lambda: Words(False), 1), "sparse": (lambda: Words(True), 1),
         "unused": (Branches, 1)}


def train(name: str, optimizer_name: str) -> dict:
    make, parts = CASES[name]
    net = make()
    with torch.no_grad():
        for phase, parameter in enumerate(net.parameters()):
            parameter.copy_(formula(phase, list(parameter.shape)) * 0.3)
    model = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=name == "unused")
    if optimizer_name == "AdamW":
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    else:
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0 if name == "sparse" else 0.9)
    for step in range(STEPS):
        def loss(part: int) -> torch.Tensor:
            place = (step, dist.get_rank(), part)
            return torch.nn.functional.mse_loss(model(place), formula(phase_of(place) + 1, [4, 3]))
        optimizer.zero_grad()
        for part in range(1, parts):
            with model.no_sync():
                loss(part).backward()
        loss(0).backward()
        optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


def trainings() -> list[tuple[str, str]]:
    """Returns all pairs; AdamW does not take sparse gradients."""
    return [(optimizer, name) for optimizer in ("SGD", "AdamW") for name in CASES
            if (optimizer, name) != ("AdamW", "sparse")]


def train_all(results: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for optimizer, name in trainings():
        result = train(name, optimizer)
        if dist.get_rank() == 0:
            torch.save(result, results / f"{optimizer}-{name}.pt")
    dist.destroy_process_group()


def run(binaries: pathlib.Path, ranks: int, *program: object) -> str:
    done = subprocess.run([binaries / "ddprun", f"--nproc-per-node={ranks}", *map(str, program)],
                          capture_output=True, text=True, timeout=280,
                          env=os.environ | {"PYTHON_EXEC": sys.executable})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest(folder: pathlib.Path) -> dict:
    return torch.load(max(folder.glob("step-*.pt")), weights_only=True)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return (ours.dtype == theirs.dtype and ours.shape == theirs.shape
            and torch.equal(ours.contiguous().flatten().view(torch.uint8),
                            theirs.contiguous().flatten().view(torch.uint8)))


def distance(ours: dict, theirs: dict, key: str) -> float:
    """Returns the greatest difference, relative to the greatest value.

    For a mean it is relative to the spread of the averaged values, because these may nearly
    cancel."""
    is_mean = key.endswith("running_mean")
    values = (theirs[key.replace("running_mean", "running_var")].sqrt() if is_mean
              else theirs[key].abs())
    greatest = values.double().max().item()
    return ((ours[key].double() - theirs[key].double()).abs().max().item() / greatest if greatest
            else 0.0)


def tensors(state: dict) -> dict[str, torch.Tensor]:
    result = {f"model {name}": tensor for name, tensor in state["model"].items()}
    for index, of_parameter in state["optimizer"]["state"].items():
        result |= {f"{key} of parameter {index}": torch.as_tensor(value)
                   for key, value in of_parameter.items()}
    return result


def compare_with_pytorch(ranks: int, binaries: pathlib.Path, sources: pathlib.Path,
                         work: pathlib.Path) -> None:
    theirs_at, ours_at = work / f"theirs{ranks}", work / f"ours{ranks}"
    theirs_at.mkdir()
    run(binaries, ranks, __file__, binaries, sources, theirs_at)
    run(binaries, ranks, binaries / "worker_probe", "ddp", ours_at)
    for optimizer, name in trainings():
        checkpoint = newest(ours_at / optimizer / name)
        assert checkpoint["step"] == STEPS and checkpoint["extra"] == {"loss": "mse"}
        assert checkpoint["optimizer_class"] == optimizer
        ours = tensors(checkpoint)
        theirs = tensors(torch.load(theirs_at / f"{optimizer}-{name}.pt"))
        assert len(theirs) >= 3 and ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
        where = f"{ranks} ranks, {optimizer}, {name}"
        if ranks == 2 and optimizer == "SGD":
            for key in theirs:
                assert same_bits(ours[key], theirs[key]), (
                    f"{where}: {key} is {distance(ours, theirs, key)} apart")
            print(f"{where}: {len(theirs)} tensors are equal, bit for bit")
        else:
            for kind, limit in (("model", 1e-6), ("", 1e-4)):
                worst = max((key for key in theirs if key.startswith(kind)),
                            key=lambda key: distance(ours, theirs, key))
                apart = distance(ours, theirs, worst)
                print(f"{where}: {worst} is {apart:.1e} apart, "
                      f"{'the rest of the model' if kind else 'all the rest'} less")
                assert apart <= limit, where


def use_checkpoint_of_train_digits(binaries: pathlib.Path, sources: pathlib.Path,
                                   work: pathlib.Path) -> None:
    output = run(binaries, 2, binaries / "train_digits", "--epochs=3",
                 f"--data={sources}/examples/data/digits", f"--checkpoint-dir={work}/digits")
    sys.path.append(str(sources / "examples"))
    import ddp_digits

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            def conv(a: int, b: int) -> torch.nn.Module:
                return torch.nn.Conv2d(a, b, 3, padding=1, bias=False)
            self.features = torch.nn.Sequential(
                conv(1, 16), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), conv(16, 32),
                torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                torch.nn.Flatten(), torch.nn.Dropout(0.25))
            self.classify = torch.nn.Linear(32 * 4 * 4, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.classify(self.features(images))

    checkpoint = newest(work / "digits")
    net = Net()
    net.load_state_dict(checkpoint["model"])  # strict: the names must be the same
    torch.optim.SGD(net.parameters(), lr=1).load_state_dict(checkpoint["optimizer"])
    accuracy = ddp_digits.accuracy(net,
                                   ddp_digits.read_digits(sources / "examples/data/digits", "t10k"))
    said = re.search(r"final accuracy ([\d.]+) %", output)[1]
    assert f"{accuracy:.2f}" == said, (accuracy, said)
    print(f"PyTorch finds the accuracy that train_digits said: {said} %")


def main() -> None:
    binaries, sources = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if len(sys.argv) == 4:
        train_all(pathlib.Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as work:
        for ranks in (2, 4) if needs.whole() else (2,):
            compare_with_pytorch(ranks, binaries, sources, pathlib.Path(work))
        use_checkpoint_of_train_digits(binaries, sources, pathlib.Path(work))


if __name__ == "__main__":
    main()
