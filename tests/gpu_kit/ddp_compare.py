"""Compares two state dicts: ddp_compare.py OURS THEIRS.

Prints JSON. The exit code is 1 if they are further apart than 1e-5.
"""
import json
import sys

import torch

ours, theirs = (torch.load(path, weights_only=True, map_location="cpu") for path in sys.argv[1:])
assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
apart = max(((ours[k].double() - theirs[k].double()).abs().max()
             / theirs[k].double().abs().max()).item() for k in theirs)
same = all(torch.equal(ours[k], theirs[k]) for k in theirs)
print(json.dumps({"apart": apart, "same_bits": same, "tensors": len(theirs)}))
sys.exit(0 if apart <= 1e-5 else 1)
