"""Tests files that Python and C++ share, both ways, against the real torch.load and
torch.save.

- State dicts of every kind that torch.save writes.
- Trainings that one side begins and the other continues. The losses must be those of
  continuing on the side that began.
- Files that C++ must refuse, with their name in the error.

argv: the folder of the programs.
"""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

needs.module("torch")
import torch

BEGUN, MORE = 10, 20
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}
CASES = {"mlp": ["sgd", "momentum", "adam", "amsgrad", "adamw", "rmsprop", "adagrad"],
         "conv": ["momentum", "adam"], "embedding": ["momentum", "adagrad"]}
# In SGD, C++ and Python round alike. The other optimizers compute their averages by other
# operations.
TOLERANCE = {"sgd": 0, "momentum": 0}


def formula(phase: float, sizes: list[int]) -> torch.Tensor:
    """Returns the numbers of formula() in state_file_probe.cc."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.7 + phase).sin().float().reshape(sizes)


def make_model(name: str) -> tuple:
    nn = torch.nn
    if name == "mlp":
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
        data = lambda i: formula(i, [4, 6])
    elif name == "conv":
        net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                            nn.Flatten(), nn.Linear(64, 3))
        data = lambda i: formula(i, [4, 2, 4, 4])
    else:
        net = nn.Sequential(nn.Embedding(10, 5), nn.Flatten(), nn.Linear(15, 3))
        data = lambda i: ((torch.arange(12) * 7 + i) % 10).view(4, 3)
    with torch.no_grad():
        for phase, parameter in enumerate(net.parameters()):
            parameter.copy_(formula(phase, list(parameter.shape)) * 0.3)
    return net, data


def train(net, data, optimizer, first: int, steps: int) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        loss = torch.nn.functional.mse_loss(net(data(step)), formula(step + 0.5, [4, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def probe(binaries: pathlib.Path, *arguments: object, ranks: int = 0) -> list[str]:
    launcher = [binaries / "ddprun", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    done = subprocess.run([*launcher, binaries / "worker_probe", "state_file",
                           *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def cases():
    for model, optimizers in CASES.items():
        for optimizer in optimizers:
            yield f"{model}-{optimizer}", model, optimizer


def check_losses(binaries: pathlib.Path, directory: pathlib.Path, expected: dict) -> None:
    """Continues in C++ from the files in the directory. Compares the losses with Python's."""
    losses = collections.defaultdict(list)
    for line in probe(binaries, "go-on", directory):
        name, loss = line.split()
        losses[name].append(float(loss))
    assert losses.keys() == expected.keys()
    for name, ours in losses.items():
        assert len(ours) == MORE and len(set(ours)) > MORE // 2, (name, ours)
        tolerance = TOLERANCE.get(name.split("-")[1], 2e-5)
        for step, (ours_here, theirs) in enumerate(zip(ours, expected[name])):
            # Nine digits represent a float exactly.
            assert abs(ours_here - float(f"{theirs:.9g}")) <= tolerance * abs(theirs), (
                name, step, ours_here, theirs)


def python_goes_on(binaries: pathlib.Path, work: pathlib.Path) -> None:
    (work / "cpp").mkdir()
    probe(binaries, "begin", work / "cpp", ranks=1)
    expected = {}
    for name, model, optimizer_name in cases():
        file, = (work / "cpp" / name).glob("*.pt")
        state = torch.load(file, weights_only=True)
        assert (state["step"] == BEGUN and state["epoch"] == 1
                and len(state["rng"]) == 1), state.keys()
        net, data = make_model(model)
        assert net.load_state_dict(state["model"], strict=True)
        optimizer = OPTIMIZERS[optimizer_name](net.parameters())
        optimizer.load_state_dict(state["optimizer"])
        expected[name] = train(net, data, optimizer, BEGUN, MORE)
        file.rename(work / "cpp" / f"{name}.pt")
    check_losses(binaries, work / "cpp", expected)


def python_reads_merged_shards(binaries: pathlib.Path, work: pathlib.Path) -> None:
    """Two ranks write their shards. Merged, they equal the file that rank 0 alone writes."""
    probe(binaries, "begin-shards", work / "shards", ranks=2)
    probe(binaries, "begin", work / "plain", ranks=2)
    for name, model, optimizer_name in cases():
        merged = work / f"{name}.pt"
        subprocess.run([binaries / "ddprun-ckpt", "merge", work / "shards" / name, "-o", merged],
                       check=True, capture_output=True, timeout=100)
        file, = (work / "plain" / name).glob("*.pt")
        ours, plain = (torch.load(one, weights_only=True) for one in (merged, file))
        assert (list(ours) == list(plain)
                and list(ours["model"]) == list(plain["model"])), (name, ours.keys())
        for key, tensor in plain["model"].items():
            assert torch.equal(ours["model"][key], tensor), (name, key)
        assert list(ours["optimizer"]["state"]) == list(plain["optimizer"]["state"]), name
        assert ours["optimizer"]["param_groups"] == plain["optimizer"]["param_groups"], name
        for index, state in plain["optimizer"]["state"].items():
            for key, value in state.items():
                assert torch.equal(torch.as_tensor(ours["optimizer"]["state"][index][key]),
                                   torch.as_tensor(value))
        net, _ = make_model(model)
        net.load_state_dict(ours["model"], strict=True)
        OPTIMIZERS[optimizer_name](net.parameters()).load_state_dict(ours["optimizer"])
        shard = torch.load(next((work / "shards" / name).glob("*.shard-0001.pt")),
                           weights_only=True)
        assert shard["shard"] == 1 and shard["shards"] == 2, shard.keys()


def cpp_goes_on(binaries: pathlib.Path, work: pathlib.Path) -> None:
    (work / "python").mkdir()
    expected = {}
    for name, model, optimizer_name in cases():
        net, data = make_model(model)
        optimizer = OPTIMIZERS[optimizer_name](net.parameters())
        train(net, data, optimizer, 0, BEGUN)
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                   work / "python" / f"{name}.pt")
        expected[name] = train(net, data, optimizer, BEGUN, MORE)
    check_losses(binaries, work / "python", expected)


def python_reads_state_dicts(binaries: pathlib.Path, work: pathlib.Path) -> None:
    (work / "written").mkdir()
    probe(binaries, "write", work / "written")
    for name, model, _ in cases():
        state = torch.load(work / "written" / f"{name}.pt", weights_only=True)
        net, _ = make_model(model)
        assert list(state) == list(net.state_dict())
        for key, tensor in net.state_dict().items():
            assert torch.equal(state[key], tensor), (name, key)
        make_model(model)[0].load_state_dict(state, strict=True)


# C++ names of the dtypes.
NAMES = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half",
         torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int", torch.int16: "Short",
         torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool",
         torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble", torch.uint16: "UInt16",
         torch.uint32: "UInt32", torch.uint64: "UInt64", torch.float8_e4m3fn: "Float8_e4m3fn",
         torch.float8_e5m2: "Float8_e5m2"}


def described(state: dict) -> list[str]:
    """Returns the lines that the probe prints for this state."""
    first, lines = {}, []
    for name, tensor in state.items():
        of_storage = first.setdefault(tensor.untyped_storage().data_ptr(), name)
        content = tensor.detach().contiguous()
        data = bytes(content.view(torch.uint8).flatten().tolist()) if content.dim() else bytes(
            content.reshape(1).view(torch.uint8).tolist())
        lists = ["[" + "".join(f"{number}," for number in numbers) + "]"
                 for numbers in (tensor.shape, tensor.stride())]
        lines.append(" ".join([name, NAMES[tensor.dtype], *lists, of_storage, data.hex()]))
    return lines


def files_of_python(work: pathlib.Path):
    """Yields pairs of a file's contents and the state dict that C++ must find in it."""
    net = make_model("conv")[0]
    plain = net.state_dict()
    assert hasattr(plain, "_metadata")
    base = torch.arange(24.).view(2, 3, 4)
    shared = {"base": base, "transposed": base.transpose(0, 2), "row": base[1, 2], "again": base,
              "one": base[1, 1, 1]}
    dtypes = {str(dtype): torch.arange(4).to(dtype) for dtype in NAMES}
    dtypes["0-dim"] = torch.tensor(3.5, dtype=torch.bfloat16)
    with_attribute = torch.ones(2)
    with_attribute.note = "left out"
    for protocol in (2, 3, 4, 5):
        yield plain, plain, protocol
    yield dict(net.named_parameters()), dict(net.named_parameters()), 2
    yield torch.nn.DataParallel(net).state_dict(), plain, 2
    yield {"module.a": base, "b": base}, {"module.a": base, "b": base}, 2
    yield shared, shared, 2
    yield dtypes, dtypes, 2
    yield {"a": with_attribute}, {"a": torch.ones(2)}, 2
    yield {}, {}, 2
    yield {"state_dict": plain, "best": 0.5}, plain, 2
    yield {"model_state_dict": plain, "epoch": 3}, plain, 2
    everything = {"integers": [2**31, -2**31, 2**40, 2**63, 2**70, -2**70], "set": {1, 2},
                  "bytes": b"\0\xff", ("a", 1): None, "dtype": torch.bfloat16,
                  "size": torch.Size([1, 2]), "device": torch.device("cpu"),
                  "text": "z\u00fcrich \U0001f600", "real": 1e308, "empty": [(), [], {}],
                  "model": plain}
    for protocol in (2, 5):
        yield everything, plain, protocol


def cpp_reads_state_dicts(binaries: pathlib.Path, work: pathlib.Path) -> None:
    expected, files = [], []
    for index, (contents, state, protocol) in enumerate(files_of_python(work)):
        files.append(work / f"{index}.pt")
        torch.save(contents, files[-1], pickle_protocol=protocol)
        expected += [f"== {files[-1]}", *described(state)]
    found = probe(binaries, "read", *files)
    for ours, theirs in zip(found, expected):
        assert ours == theirs, f"\n{ours}\n{theirs}"
    assert len(found) == len(expected)


class Foreign:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: pathlib.Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def cpp_refuses(binaries: pathlib.Path, work: pathlib.Path) -> None:
    net = make_model("mlp")[0]
    mark = work / "was_run"

    def save(contents: object, name: str, **options: object) -> pathlib.Path:
        torch.save(contents, work / name, **options)
        return work / name

    torch.jit.script(net).save(work / "script.pt")
    (work / "folder").mkdir()
    whole = save(net.state_dict(), "whole.pt").read_bytes()
    first_weights = formula(0, [32, 6]).mul(0.3).numpy().tobytes()[:8]
    (work / "flipped.pt").write_bytes(whole.replace(first_weights, b"AAAAAAAA", 1))
    (work / "cut.pt").write_bytes(whole[:len(whole) // 2])
    (work / "no.pt").write_bytes(b"")
    expected = {
        save({"model": net.state_dict(), "x": Foreign(mark)}, "foreign.pt"):
            "it names posix.system, which is not allowed",
        save(net, "module.pt"):
            "it names torch.nn.modules.container.Sequential, which is not allowed",
        save(net.state_dict(), "old.pt", _use_new_zipfile_serialization=False):
            "that PyTorch wrote before 1.6",
        save({"a": torch.eye(2).to_sparse()}, "sparse.pt"):
            "_rebuild_sparse_tensor, which is not allowed",
        save([torch.ones(1)], "list.pt"):
            "it has no state dict, neither as a whole nor under 'model'",
        save({"epoch": 3, 7: None}, "no_model.pt"): "it is a dict of 'epoch', an integer",
        work / "script.pt": "is compressed, as in TorchScript archives",
        work / "flipped.pt": "do not match its CRC: it is damaged",
        work / "cut.pt": "not a zip archive, or cut off",
        work / "no.pt": "too short",
        work / "folder": "folder",
        work / "missing.pt": "No such file",
    }
    found = probe(binaries, "read", *expected)
    for index, (file, words) in enumerate(expected.items()):
        assert found[2 * index] == f"== {file}", found
        line = found[2 * index + 1]
        assert line.startswith("error: ") and str(file) in line and words in line, (
            file, words, line)
    assert len(found) == 2 * len(expected) and not mark.exists()


def main() -> None:
    binaries = pathlib.Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        for check in (cpp_refuses, cpp_reads_state_dicts, python_reads_state_dicts,
                      python_reads_merged_shards, python_goes_on, cpp_goes_on):
            work = pathlib.Path(directory) / check.__name__
            work.mkdir()
            check(binaries, work)
            print(f"{check.__name__}: as it should be")


if __name__ == "__main__":
    main()
