"""Makes lr-vectors.json: what PyTorch's schedulers do to the rates of two parameter groups.

Run it with a python that has PyTorch; it prints the file.
"""
import json
import math

import torch
from torch.optim import lr_scheduler

RATES = [0.1, 0.03]


def optimizer():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in RATES]
    return torch.optim.SGD(groups, lr=1)


def plain(state):
    """Without what JSON has no word for: Counters, infinities."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items() if key != "milestones"}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return None if isinstance(state, float) and math.isinf(state) else state


def case(name, rule, make, epochs, metrics=None, by_hand=None):
    """Returns the rates from epoch 0 on, and the state in the middle.

    by_hand: (epoch, rates) that the program sets.
    """
    opt = optimizer()
    scheduler = make(opt)
    rates, state = [], None
    for epoch in range(epochs + 1):
        if epoch > 0:
            opt.step()
            scheduler.step(*([metrics[epoch - 1]] if metrics else []))
        rates.append([group["lr"] for group in opt.param_groups])
        if by_hand and by_hand[0] == epoch:
            for group, rate in zip(opt.param_groups, by_hand[1]):
                group["lr"] = rate
        if epoch == epochs // 2:
            state = plain(scheduler.state_dict())
    return {"name": name, "rule": rule, "metrics": metrics, "by_hand": by_hand, "rates": rates,
            "state": state}


def single(name, cls, epochs, by_hand=None, **fields):
    rule = {"class": cls, **fields}
    return case(name, rule, lambda opt: getattr(lr_scheduler, cls)(opt, **fields), epochs,
                by_hand=by_hand)


def sequence(name, rules, milestones, epochs):
    def make(opt):
        schedules = [getattr(lr_scheduler, cls)(opt, **fields) for cls, fields in rules]
        return lr_scheduler.SequentialLR(opt, schedules, milestones)
    rule = {"class": "SequentialLR", "milestones": milestones,
            "schedules": [{"class": cls, **fields} for cls, fields in rules]}
    return case(name, rule, make, epochs)


def plateau(name, metrics, **fields):
    rule = {"class": "ReduceLROnPlateau", **fields}
    return case(name, rule, lambda opt: lr_scheduler.ReduceLROnPlateau(opt, **fields), len(metrics),
                metrics)


FALLING = [1 / (epoch + 1) for epoch in range(8)] + [0.12] * 30
WAVES = [math.sin(epoch * 0.9) + epoch * 0.01 for epoch in range(40)]
cases = [
    single("step", "StepLR", 40, step_size=7, gamma=0.3),
    single("step_1", "StepLR", 20, step_size=1, gamma=0.97),
    single("step_by_hand", "StepLR", 12, by_hand=(5, [0.7, 0.011]), step_size=4, gamma=0.1),
    single("multi_step", "MultiStepLR", 30, milestones=[3, 10, 10, 21], gamma=0.3),
    single("multi_step_0", "MultiStepLR", 6, milestones=[0, 2], gamma=0.7),
    single("multi_step_none", "MultiStepLR", 4, milestones=[], gamma=0.7),
    single("cosine", "CosineAnnealingLR", 100, T_max=37, eta_min=0.001),
    single("cosine_short", "CosineAnnealingLR", 9, T_max=1, eta_min=0.0),
    single("cosine_by_hand", "CosineAnnealingLR", 30, by_hand=(11, [0.02, 0.09]), T_max=10,
           eta_min=0.0),
    single("linear", "LinearLR", 20, start_factor=1 / 3, end_factor=1.0, total_iters=5),
    single("linear_down", "LinearLR", 20, start_factor=1.0, end_factor=0.01, total_iters=13),
    sequence("warmup_cosine", [("LinearLR", dict(start_factor=0.01, end_factor=1.0, total_iters=5)),
                               ("CosineAnnealingLR", dict(T_max=45, eta_min=1e-5))], [5], 60),
    sequence("warmup_step", [("LinearLR", dict(start_factor=0.1, end_factor=1.0, total_iters=4)),
                             ("StepLR", dict(step_size=3, gamma=0.5))], [4], 20),
    sequence("three", [("StepLR", dict(step_size=2, gamma=0.9)),
                       ("MultiStepLR", dict(milestones=[0, 2], gamma=0.2)),
                       ("LinearLR", dict(start_factor=0.5, end_factor=0.1, total_iters=3))], [5, 9],
             16),
    plateau("plateau", FALLING, mode="min", factor=0.1, patience=3, threshold=1e-4,
            threshold_mode="rel", cooldown=0, min_lr=0.0, eps=1e-8),
    plateau("plateau_cooldown", FALLING, mode="min", factor=0.3, patience=2, threshold=0.05,
            threshold_mode="abs", cooldown=4, min_lr=[0.001, 0.02], eps=1e-8),
    plateau("plateau_max", WAVES, mode="max", factor=0.5, patience=0, threshold=0.1,
            threshold_mode="rel", cooldown=2, min_lr=0.0, eps=1e-3),
    plateau("plateau_max_abs", WAVES, mode="max", factor=0.5, patience=4, threshold=0.01,
            threshold_mode="abs", cooldown=0, min_lr=0.0, eps=1e-8),
]
print(json.dumps({"source": f"torch {torch.__version__.split('+')[0]}, lr_vectors.py",
                  "initial": RATES, "cases": cases}, indent=None).replace('{"name"', '\n  {"name"'))
