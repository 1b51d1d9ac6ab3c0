"""Tests that other tools read what `ddprun-ckpt export` writes, and that trainings restore what
`ddprun-ckpt import` makes of their files: equal bits."""
import json
import os
import pickle
import shutil
import subprocess
import sys

import frame
import needs

needs.module("torch")
needs.module("safetensors", " (scripts/setup --tests installs it)")
import checkpoint_cpp_test  # noqa: E402
import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
import state_file_test  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

from ddprun import checkpoint  # noqa: E402

TOOL = frame.BIN / "ddprun-ckpt"


def flip_a_bit(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def make_net():
    """Returns a net with a tied weight, a weight that is not contiguous, and buffers."""
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3), torch.nn.BatchNorm2d(6),
                              torch.nn.Linear(5, 5), torch.nn.Linear(5, 5, dtype=torch.bfloat16))
    net = net.to(memory_format=torch.channels_last)
    net.tied = torch.nn.Linear(5, 5)
    net.tied.weight = net[2].weight
    return net


class Formats(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1, self.out = self.folder / "run1", self.folder / "out"

    def export(self, path, form, *step, code=0):
        return frame.run([TOOL, "export", path, *step, f"--{form}", self.out], code=code)

    def save(self, step=3, **more):
        """Saves a checkpoint with an optimizer, and returns its net."""
        net = make_net()
        optimizer = torch.optim.Adam(net.parameters())
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        manager = checkpoint.CheckpointManager(self.run1)
        manager.save(step, checkpoint.TrainingState(net, optimizer, extra={"a": [1, {}]}, **more))
        manager.wait()
        return net

    def assert_same(self, found, expected):
        """Compares trees. Keys of dicts that are integers are text in DCP."""
        self.assertIs(type(found), type(expected))
        if isinstance(expected, dict):
            expected = {str(key): value for key, value in expected.items()}
            found = {str(key): value for key, value in found.items()}
            self.assertEqual(sorted(found), sorted(expected))
            for key, value in expected.items():
                self.assert_same(found[key], value)
        elif isinstance(expected, (list, tuple)):
            self.assertEqual(len(found), len(expected))
            for one, other in zip(found, expected):
                self.assert_same(one, other)
        elif isinstance(expected, torch.Tensor):
            self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape))
            found, expected = (one.contiguous().flatten().view(torch.uint8).tolist() if one.numel()
                               else [] for one in (found, expected))
            self.assertEqual(found, expected)
        else:
            self.assertEqual(found, expected)

    def without_empty_dicts(self, tree):
        """Returns what DCP keeps of a dict."""
        return {key: self.without_empty_dicts(value) if isinstance(value, dict) else value
                for key, value in tree.items() if value != {}}

    def test_safetensors_has_the_models_by_the_names_of_their_tensors(self):
        net = self.save()
        output = self.export(self.run1, "safetensors")
        self.assertRegex(output, r"^left out: .*optimizer.*\n.*out: step 3, \d")
        self.assert_same(safetensors.torch.load_file(self.out), dict(net.state_dict()))
        with safetensors.safe_open(self.out, "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "step": "3"})
        again = make_net()
        again.load_state_dict(safetensors.torch.load_file(self.out))

    def test_of_a_file_with_a_model_safetensors_has_the_model(self):
        net = make_net()
        file = self.folder / "file.pt"
        torch.save({"model": net.state_dict(), "iter_num": 7, "config": {"model": "small"},
                    "optimizer": torch.optim.Adam(net.parameters()).state_dict()}, file)
        output = self.export(file, "safetensors")
        self.assertTrue(output.startswith("left out: iter_num, config, optimizer\n"), output)
        self.assert_same(safetensors.torch.load_file(self.out), dict(net.state_dict()))

    def test_what_is_left_out_is_one_short_line(self):
        file = self.folder / "file.pt"
        torch.save({"a": torch.ones(1), **{f"number_{i}": i for i in range(100)}}, file)
        output = self.export(file, "safetensors")
        self.assertIn("left out: number_0, number_1, number_2, number_3, number_4, number_5 and 94 "
                      "more\n", output)

    def test_torch_is_the_file_itself(self):
        self.save()
        self.export(self.run1, "torch", 3)
        data = next(self.run1.glob("*.pt")).read_bytes()
        self.assertEqual(self.out.read_bytes(), data)

    def test_dcp_loads_into_a_state_dict_and_becomes_a_file_again(self):
        net = self.save()
        self.export(self.run1, "dcp")
        state = {"model": make_net().state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=self.out)
        self.assert_same(dict(state["model"]), dict(net.state_dict()))
        self.assertEqual(state["step"], 3)
        again = make_net()
        optimizer = torch.optim.Adam(again.parameters(), lr=7)
        for parameter in again.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        state = {"optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=self.out)
        saved = checkpoint.load(self.run1)
        self.assert_same(state["optimizer"], saved["optimizer"])
        dcp_to_torch_save(self.out, self.folder / "again.pt")
        self.assert_same(torch.load(self.folder / "again.pt"), self.without_empty_dicts(saved))

    def test_shards_are_exported_as_one(self):
        state_file_test.probe(frame.BIN, "begin-shards", self.folder / "shards", ranks=2)
        for name, _, _ in list(state_file_test.cases())[:3]:
            saved = checkpoint.load(self.folder / "shards" / name)
            for form, load in (("torch", lambda path: torch.load(path, weights_only=True)),
                               ("safetensors", safetensors.torch.load_file),
                               ("dcp", self.load_dcp)):
                self.out = self.folder / f"{name}.{form}"
                self.export(self.folder / "shards" / name, form)
                self.assert_same(load(self.out), saved["model"] if form == "safetensors" else
                                 self.without_empty_dicts(saved) if form == "dcp" else saved)

    def load_dcp(self, path):
        dcp_to_torch_save(path, self.folder / "dcp.pt")
        return torch.load(self.folder / "dcp.pt", weights_only=True)

    def test_a_file_of_torch_save_with_all_kinds_of_tensors(self):
        base = torch.arange(24.0)
        tensors = {"int8": torch.tensor([-1], dtype=torch.int8), "scalar": torch.tensor(2.5),
                   "empty": torch.empty(0, 3), "bool": torch.tensor([True, False, True]),
                   "complex64": torch.tensor([1 + 2j]), "half": torch.ones(3, dtype=torch.half),
                   "view": base[5:9], "same": base[5:9], "transposed": base.reshape(4, 6).t(),
                   "expanded": torch.tensor([1.5]).expand(3, 2), "last": base[-1],
                   "float64": torch.rand(3, dtype=torch.float64),
                   "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
                   "float8": torch.ones(3).to(torch.float8_e4m3fn)}
        tree = {"text": "x", "nested": {"list": [torch.ones(2), {"a": torch.zeros(1)}], 7: 8},
                **tensors}
        file = self.folder / "file.pt"
        torch.save(tree, file)
        output = self.export(file, "safetensors")
        self.assertIn("left out: text, nested.7\n", output)
        self.assert_same(safetensors.torch.load_file(self.out),
                         {**tensors, "nested.list.0": torch.ones(2), "nested.list.1.a":
                          torch.zeros(1)})
        self.out = self.folder / "dcp"
        self.export(file, "dcp")
        self.assert_same(self.load_dcp(self.out), tree)
        self.imported("safetensors", self.folder / "out")
        self.assert_same(checkpoint.load(self.folder / "new")["model"],
                         safetensors.torch.load_file(self.folder / "out"))
        flip_a_bit(file, file.read_bytes().index(base.numpy().tobytes()) + 50)
        self.out = self.folder / "damaged"
        for form in ("safetensors", "dcp"):
            self.assertIn("do not match its CRC", self.export(file, form, code=78))

    def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(self):
        self.save(step=3)
        self.save(step=4)
        file = self.folder / "file.pt"
        shard = self.run1 / "step-000000000004.pt"
        flip_a_bit(shard, shard.stat().st_size // 2)
        before = sorted(os.listdir(self.folder))

        def refused(words, path, form, *step, code=73):
            output = self.export(path, form, *step, code=code)
            self.assertIn(words, output)
            self.assertEqual(output.count("\n"), 1, output)

        for form in ("torch", "safetensors", "dcp"):
            refused("has no checkpoint of step 7", self.run1, form, 7)
            refused("step-000000000004.pt: its SHA-256 is not", self.run1, form, 4, code=78)
            refused("No such file or directory", self.folder / "none", form)
            self.assertEqual(sorted(os.listdir(self.folder)), before)
        for tree, form, words in (
                ({"a": torch.ones(1, dtype=torch.complex128)}, "safetensors",
                 "'a' has the dtype complex128"),
                ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "safetensors",
                 "two tensors have the name 'a.b'"),
                ({"a.b": 1, "a": {"b": 2}}, "dcp", "two values have the name 'a.b'"),
                ({(1, 2): torch.ones(1)}, "dcp", "a key is a tuple"),
                ({(1, 2): torch.ones(1)}, "safetensors", "a key is a tuple"),
                ([torch.ones(1)], "dcp", "it is a list"),
                ({"a": {1}}, "dcp", "a set is not supported"),
                ({"a": 1}, "torch", "is a file of torch.save: copy it")):
            torch.save(tree, file)
            refused(words, file, form)
        file.unlink()
        for kind in ("file", "folder", "broken link"):
            if kind == "file":
                self.out.write_text("precious")
            elif kind == "folder":
                self.out.mkdir()
            else:
                self.out.symlink_to("nowhere")
            for form in ("torch", "safetensors", "dcp"):
                refused("already exists", self.run1, form, 3)
            if kind == "file":
                self.assertEqual(self.out.read_text(), "precious")
            (self.out.rmdir if kind == "folder" else self.out.unlink)()
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_its_memory_does_not_grow_with_the_tensors(self):
        net = torch.nn.Linear(4096, 8192, bias=False)  # 128 MiB
        manager = checkpoint.CheckpointManager(self.run1)
        manager.save(1, checkpoint.TrainingState(net))
        manager.wait()
        for form in ("torch", "safetensors", "dcp"):
            # A process of its own: the figure of a child begins with its parent's memory.
            kib = subprocess.run(
                [sys.executable, "-c", "import resource, subprocess, sys\n"
                 "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
                 TOOL, "export", self.run1, f"--{form}", self.folder / f"out.{form}"],
                check=True, stdout=subprocess.PIPE, text=True).stdout
            self.assertLess(int(kib), 64 << 10, f"KiB with --{form}")

    def imported(self, form, path, *more, code=0):
        return frame.run([TOOL, "import", f"--{form}", path, "--into", self.folder / "new", *more],
                         code=code)

    def test_imported_weights_begin_a_training(self):
        net = self.save()
        for form, step in (("safetensors", 0), ("dcp", 7)):
            self.out = self.folder / form
            self.export(self.run1, form)
            output = self.imported(form, self.out, *(["--step", step] if step else []))
            self.assertRegex(output, rf"new: step {step}, \d+ tensors of a model, .*; without opt")
            self.assertEqual("left out: optimizer" in output, form == "dcp")
            top = checkpoint.load(self.folder / "new")
            self.assert_same(top["model"], dict(net.state_dict()))
            self.assertEqual((top["step"], top["imported"]), (step, str(self.out)))
            again = make_net()
            optimizer = torch.optim.Adam(again.parameters())
            restored = checkpoint.CheckpointManager(self.folder / "new", read_only=True).restore(
                checkpoint.TrainingState(again, optimizer))
            self.assertEqual(restored.step, step)
            self.assertRegex(restored.remarks[-1], r"has only the weights of .*: everything else")
            self.assert_same(dict(again.state_dict()), dict(net.state_dict()))
            frame.run([TOOL, "verify", self.folder / "new"])
            self.assertIn("belongs to a training", self.imported(form, self.out, code=73))
            shutil.rmtree(self.folder / "new")

    def test_cpp_restores_imported_weights(self):
        net = checkpoint_cpp_test.Training().net
        torch.manual_seed(5)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter)
        safetensors.torch.save_file(net.state_dict(), self.out)
        self.imported("safetensors", self.out)
        # So small a learning rate changes no parameter.
        output = frame.run([frame.DDPRUN, "--nproc-per-node=2", "--standalone",
                            frame.BIN / "train_digits", "--epochs=1", "--lr=1e-40",
                            f"--data={checkpoint_cpp_test.DIGITS}", "--checkpoint-every=20",
                            f"--checkpoint-dir={self.folder / 'new'}"])
        self.assertRegex(output, "has only the weights of .*: everything else starts as it is")
        self.assertIn("resumed at step 0 ", output)
        top = checkpoint.load(self.folder / "new")
        self.assertEqual(top["step"], 23)
        self.assert_same({name: top["model"][name] for name, _ in net.named_parameters()},
                         {name: one.detach() for name, one in net.named_parameters()})

    def test_sharded_tensors_of_dcp_are_put_together(self):
        tensors = {"rows": torch.arange(60.0).reshape(5, 12),
                   "columns": torch.arange(48, dtype=torch.int64).reshape(6, 4, 2),
                   "small": torch.ones(1, dtype=torch.bfloat16)}
        script = self.script(f"""
            import sys, torch
            import torch.distributed as dist
            import torch.distributed.checkpoint as dcp
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import Shard, Replicate, distribute_tensor
            dist.init_process_group("gloo")
            mesh = init_device_mesh("cpu", (2,))
            tensors = torch.load("{self.folder / 'tensors.pt'}")
            places = {{"rows": Shard(0), "columns": Shard(1), "small": Replicate()}}
            dcp.save({{name: distribute_tensor(one, mesh, [places[name]])
                       for name, one in tensors.items()}}, checkpoint_id=sys.argv[1])
            dist.destroy_process_group()
            """)
        torch.save(tensors, self.folder / "tensors.pt")
        frame.run([frame.DDPRUN, "--nproc-per-node=2", "--standalone", script, self.out])
        self.imported("dcp", self.out)
        self.assert_same(checkpoint.load(self.folder / "new")["model"], tensors)
        data = next(self.out.glob("__1_0.distcp"))
        shutil.rmtree(self.folder / "new")
        for part in (tensors["rows"][4], tensors["columns"][:, 2:].contiguous()):
            at = data.read_bytes().index(part.numpy().tobytes())
            flip_a_bit(data, at)
            self.assertIn("do not match their CRC", self.imported("dcp", self.out, code=78))
            self.assertFalse((self.folder / "new").exists())
            flip_a_bit(data, at)

    def test_what_cannot_be_imported_is_one_line(self):
        header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}

        def refused(words, **changes):
            text = json.dumps({**header, "a": {**header["a"], **changes}}).encode()
            self.out.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
            output = self.imported("safetensors", self.out, code=78)
            self.assertIn(words, output)
            self.assertEqual(output.count("\n"), 1, output)

        refused("its dtype F31 is not one", dtype="F31")
        refused("its shape is invalid", shape=[-1])
        refused("its shape is invalid", shape=[1 << 62, 1 << 62, 0])
        refused("its place does not fit", shape=[3])
        refused("its place does not fit", data_offsets=[4, 12])
        refused("its place does not fit", data_offsets=[8, 0])
        refused("it has no dtype", shape="x")
        header["b"] = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
        refused("overlaps another one")
        for data in (b"", b"1234567", b"\xff" * 40, b"\2\0\0\0\0\0\0\0[]",
                     b"\3\0\0\0\0\0\0\0{x}"):
            self.out.write_bytes(data)
            self.imported("safetensors", self.out, code=78)
        self.assertIn("No such file", self.imported("dcp", self.folder / "none", code=73))
        self.out.unlink()
        torch.save({"model": {"a": torch.ones(3)}}, self.folder / "file.pt")
        self.export(self.folder / "file.pt", "dcp")
        metadata = (self.out / ".metadata").read_bytes()
        for old, new, words in (
                (b"ctorch\nSize", b"cos\nsystem", "names os.system, which is not allowed"),
                (b"__0_0.distcp", b"/_0_0.distcp", "a file is not in the directory"),
                (b"__0_0.distcp", b"__1_0.distcp", "No such file"),
                (b"torch\nfloat32", b"torch\nfloat33", "not allowed"),
                (b"_dict_metadata", b"_dict_netadata", "it is not what PyTorch writes")):
            self.assertIn(old, metadata)
            (self.out / ".metadata").write_bytes(metadata.replace(old, new))
            self.assertIn(words, self.imported("dcp", self.out, code=78))
        for at in range(0, len(metadata), 7):  # no crash, whatever is there
            (self.out / ".metadata").write_bytes(metadata[:at] + b"\xff" + metadata[at + 1:])
            code = subprocess.run([TOOL, "import", "--dcp", self.out, "--into",
                                   self.folder / "new"], capture_output=True).returncode
            self.assertIn(code, (0, 73, 78))
            shutil.rmtree(self.folder / "new", ignore_errors=True)

    def test_metadata_of_dcp_is_what_pytorch_itself_writes(self):
        tree = {"a": torch.ones(2, 3), "b": {"c": [torch.zeros(1, dtype=torch.int64)]}, "d": "x"}
        torch.save(tree, self.folder / "file.pt")
        self.export(self.folder / "file.pt", "dcp")
        dcp.save(tree, checkpoint_id=self.folder / "own", no_dist=True)
        ours, own = (pickle.loads((path / ".metadata").read_bytes())
                     for path in (self.out, self.folder / "own"))
        self.assertEqual(ours.state_dict_metadata, own.state_dict_metadata)
        self.assertEqual(ours.planner_data, own.planner_data)
        self.assertEqual(set(ours.storage_data), set(own.storage_data))
        self.assertEqual(sorted(os.listdir(self.out)), sorted(os.listdir(self.folder / "own")))


if __name__ == "__main__":
    frame.main()
