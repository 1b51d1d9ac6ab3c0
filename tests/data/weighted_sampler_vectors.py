"""Prints weighted-sampler-vectors.json: the draws of torch.utils.data.WeightedRandomSampler."""
import json

import torch
from torch.utils.data import WeightedRandomSampler

CASES = [
    ([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 10, True, 0),
    ([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 5, False, 3),
    ([1.0] * 40, 40, False, 7),
    ([float(i % 5) for i in range(100)], 200, True, 12345),
    ([0.0, 0.0, 1.0], 4, True, 1),
]

print("[")
for i, (weights, samples, replacement, seed) in enumerate(CASES):
    generator = torch.Generator().manual_seed(seed)
    drawn = list(WeightedRandomSampler(weights, samples, replacement, generator))
    case = {"weights": weights, "samples": samples, "replacement": replacement, "seed": seed,
            "drawn": drawn}
    print(json.dumps(case) + ("," if i + 1 < len(CASES) else ""))
print("]")
