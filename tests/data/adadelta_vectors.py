"""Prints adadelta-vectors.json: two parameters after steps of PyTorch's Adadelta.

The gradients are whole eighths. Run it with a python that has PyTorch.
"""
import json

import torch

SIZES = [[3, 7], [5]]  # a vector's width and a rest


def gradient(step, index, size):
    """The same numbers as gradient() in adadelta_test.cc."""
    count = torch.Size(size).numel()
    whole = (torch.arange(count) * 7 + step * 13 + index * 5) % 11 - 5
    return (whole / 8).reshape(size)


def weights(parameter):
    return [float(value) for value in parameter.detach().flatten()]


cases = []
for dtype in [torch.float32, torch.float64]:
    for name, options in [("defaults", {}),
                          ("decay", dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1)),
                          ("maximize", dict(lr=2.0, maximize=True))]:
        begin = [torch.arange(torch.Size(size).numel(), dtype=dtype) / 4 - 1 for size in SIZES]
        parameters = [torch.nn.Parameter(values.reshape(size))
                      for values, size in zip(begin, SIZES)]
        optimizer = torch.optim.Adadelta(parameters, foreach=False, **options)
        steps = []
        for step in range(12):
            for index, parameter in enumerate(parameters):
                # The second one has no gradient in every third step.
                is_missing = index == 1 and step % 3 == 0
                parameter.grad = (None if is_missing
                                  else gradient(step, index, SIZES[index]).to(dtype))
            optimizer.step()
            steps.append([weights(parameter) for parameter in parameters])
        cases.append({"name": name, "dtype": str(dtype).split(".")[1], "options": options,
                      "steps": steps})
text = json.dumps({"source": f"torch {torch.__version__.split('+')[0]}, adadelta_vectors.py",
                   "cases": cases})
print(text.replace('{"name"', '\n  {"name"'))
