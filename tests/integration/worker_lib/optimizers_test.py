"""Continues trainings of optimizers_probe.cc with PyTorch, from checkpoints of their middle.

PyTorch's optimizers and learning-rate schedulers load the states unchanged. They end with the
weights and rates of the probe's end, bit for bit. (LBFGS without a line search: LibTorch's and
PyTorch's results differ by some 1e-6 from the start, too.)

argv: the folder of the programs.
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch")
import torch
from torch.optim import lr_scheduler

MIDDLE, END = 6, 12


def formula(phase: float, sizes: list[int]) -> torch.Tensor:
    """Returns the numbers of formula() in optimizers_probe.cc."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.7 + phase).sin().float().reshape(sizes)


# As in the probe. Values that a state contains are different here, and the state must replace
# them.
SCHEDULERS = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 99),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [3, 8, 8], gamma=0.9),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 99),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=99),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt), lr_scheduler.CosineAnnealingLR(opt, 99)], [99]),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=99),
}


def load(folder: pathlib.Path, step: int) -> dict:
    return torch.load(folder / f"step-{step:012}.pt", weights_only=True)


def go_on(folder: pathlib.Path) -> None:
    name = folder.name
    saved, expected = load(folder, MIDDLE), load(folder, END)
    assert saved["lr_scheduler_class"] == name, saved["lr_scheduler_class"]
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    net.load_state_dict(saved["model"])
    optimizer = torch.optim.LBFGS(net.parameters()) if saved["optimizer_class"] == "LBFGS" else \
        torch.optim.Adadelta(net.parameters(), foreach=False)
    scheduler = SCHEDULERS[name](optimizer)
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["lr_scheduler"])
    for step in range(MIDDLE, END):
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(formula(100 * step, [4, 6])),
                                                formula(100 * step + 1, [4, 3]))
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        scheduler.step(*([loss.item()] if name == "ReduceLROnPlateau" else []))
    rate = optimizer.param_groups[0]["lr"]
    expected_rate = expected["optimizer"]["param_groups"][0]["lr"]
    assert rate == expected_rate, f"{name}: rate {rate}, the probe's {expected_rate}"
    assert rate != saved["optimizer"]["param_groups"][0]["lr"], f"{name}: the rate never changed"
    for key, tensor in net.state_dict().items():
        difference = (tensor - expected["model"][key]).abs().max().item()
        assert difference == 0, f"{name}: {key} differs by {difference}"
        assert not torch.equal(tensor, saved["model"][key]), f"{name}: {key} never changed"
    print(f"{name}: PyTorch ends at the rate {rate} and the weights of the probe")


def main() -> None:
    torch.set_num_threads(1)
    binaries = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run([binaries / "ddprun", "--nproc-per-node=1",
                               binaries / "worker_probe", "optimizers", work],
                              capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        for name in SCHEDULERS:
            go_on(pathlib.Path(work) / name)


if __name__ == "__main__":
    main()
