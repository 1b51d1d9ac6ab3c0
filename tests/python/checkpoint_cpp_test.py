"""Tests that C++ restores what Python saves, and Python what C++ saves: equal bits.

The program in C++ is examples/train_digits.cc. Its training is repeated here, step by step.
"""
import hashlib
import json
import os
import re
import shutil
import sys
import unittest.mock

import frame
import needs

needs.module("torch")
import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

sys.path[:0] = [str(frame.SOURCES / "examples"),
                str(frame.SOURCES / "tests/integration/worker_lib")]
import ddp_digits  # noqa: E402
import state_file_test  # noqa: E402

from ddprun import checkpoint  # noqa: E402

EPOCHS, LR, SEED, BATCH = 2, 0.05, 1, 32
DIGITS = frame.SOURCES / "examples/data/digits"


class Net(torch.nn.Module):
    """The net of train_digits.cc, with the same names."""

    def __init__(self, height, width):
        super().__init__()
        nn = torch.nn
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25))
        self.classify = nn.Linear(32 * (height // 2) * (width // 2), 10)

    def forward(self, images):
        return self.classify(self.features(images))


def digest_of(net):
    """Returns what ddprun::digest_of() returns in C++."""
    digest = hashlib.sha256()
    names = {torch.float32: "float", torch.int64: "long int"}
    for name, tensor in net.state_dict().items():
        digest.update(f"{name} {names[tensor.dtype]} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Training:
    """The training of train_digits.cc, on one rank."""

    def __init__(self):
        torch.set_num_threads(1)
        self.digits = ddp_digits.read_digits(DIGITS, "train")
        torch.manual_seed(SEED)
        self.net = Net(*self.digits.tensors[0].shape[2:])
        self.optimizer = torch.optim.SGD(self.net.parameters(), LR, momentum=0.9)
        self.sampler = checkpoint.DistributedSampler(self.digits, 1, 0, seed=SEED)
        self.state = checkpoint.TrainingState(self.net, self.optimizer, sampler=self.sampler)
        self.step = 0

    def restore(self, directory):
        restored = checkpoint.CheckpointManager(directory).restore(self.state)
        assert restored and not restored.skipped and not restored.remarks, restored
        self.step = restored.step
        return self

    def save(self, directory):
        manager = checkpoint.CheckpointManager(directory)
        manager.save(self.step, self.state)
        manager.wait()

    def run(self, steps=None, workers=0):
        """Trains to the end, or this number of steps."""
        last = EPOCHS * -(-len(self.digits) // BATCH)
        end = last if steps is None else self.step + steps
        loader = DataLoader(self.digits, BATCH, sampler=self.sampler, num_workers=workers,
                            generator=torch.Generator())
        for epoch in range(self.state.epoch, EPOCHS):
            self.state.epoch = epoch
            self.sampler.set_epoch(epoch)
            for images, labels in self.sampler.batches(loader):
                self.optimizer.param_groups[0]["lr"] = LR * (1 - self.step / last)
                self.optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.net(ddp_digits.jittered(images)),
                                                         labels)
                loss.backward()
                self.optimizer.step()
                self.step += 1
                if self.step == end:
                    return


class Cpp(frame.Test):
    def train(self, directory, ranks=1, options=()):
        """Runs train_digits to its end. Returns the digest of its weights, and its output."""
        output = frame.run([frame.DDPRUN, f"--nproc-per-node={ranks}", "--standalone",
                            frame.BIN / "train_digits", f"--epochs={EPOCHS}", f"--data={DIGITS}",
                            f"--checkpoint-dir={directory}", *options])
        return re.search(r"sha256 (\w+)", output)[1], output

    def cut(self, directory, step):
        """Returns a copy of a directory without the checkpoints after a step."""
        copy = directory.with_name(f"{directory.name}-{step}")
        shutil.copytree(directory, copy)
        for manifest in copy.glob("step-*.json"):
            if json.loads(manifest.read_text())["step"] > step:
                manifest.unlink()
        return copy

    def test_a_training_that_changes_its_language_in_an_epoch_ends_with_the_same_bits(self):
        straight = self.folder / "straight"
        expected, _ = self.train(straight, options=["--checkpoint-every=35"])
        # C++ goes on from what Python has restored and saved, with no step between.
        within = self.cut(straight, 35)
        Training().restore(within).save(self.folder / "again")
        found, output = self.train(self.folder / "again")
        self.assertEqual(found, expected)
        self.assertIn("resumed at step 35 (epoch 1)", output)
        # Python trains from C++'s step 35 to the end.
        python = Training().restore(within)
        python.run()
        self.assertEqual((python.step, digest_of(python.net)), (90, expected))
        # Python trains some steps, with a loader that is ahead, and C++ the rest.
        between = Training().restore(within)
        between.run(steps=20, workers=1)
        between.save(self.folder / "between")
        self.assertEqual(self.train(self.folder / "between")[0], expected)
        # And Python restores what C++ has saved last.
        last = Training().restore(self.folder / "between")
        self.assertEqual((last.step, digest_of(last.net)), (90, expected))

    def test_python_reads_the_networks_of_dcgan_by_name(self):
        frame.run([frame.DDPRUN, "--standalone", frame.BIN / "dcgan", "--epochs=1",
                   f"--data={DIGITS}", "--checkpoint-every=10",
                   f"--checkpoint-dir={self.folder / 'gan'}"])
        files = checkpoint.load(self.folder / "gan")  # by torch.load(weights_only=True)
        self.assertEqual(files["tensors"]["fixed_noise"].shape[0], 4)
        nn = torch.nn
        wide = files["models"]["discriminator"]["0.weight"].shape[0]
        noise = files["tensors"]["fixed_noise"].shape[1]
        nets = {"generator": nn.Sequential(
                    nn.ConvTranspose2d(noise, 2 * wide, 4, 1, 0, bias=False),
                    nn.BatchNorm2d(2 * wide), nn.ReLU(),
                    nn.ConvTranspose2d(2 * wide, 1, 4, 2, 1, bias=False), nn.Tanh()),
                "discriminator": nn.Sequential(
                    nn.Conv2d(1, wide, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
                    nn.Conv2d(wide, wide, 1), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2),
                    nn.Conv2d(wide, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0))}
        adams = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
        state = checkpoint.TrainingState(models=nets, optimizers=adams)
        restored = checkpoint.CheckpointManager(self.folder / "gan", read_only=True).restore(state)
        self.assertEqual((restored.step, restored.skipped), (files["step"], ()))
        for name, net in nets.items():
            for key, tensor in net.state_dict().items():
                self.assertTrue(torch.equal(tensor, files["models"][name][key]), f"{name}.{key}")
            self.assertEqual(adams[name].param_groups[0]["betas"], (0.5, 0.999))
            self.assertEqual(len(adams[name].state), len(list(net.parameters())))

    def test_a_world_of_another_size_continues_the_epoch(self):
        self.train(self.folder / "two", ranks=2, options=["--checkpoint-every=35"])
        files = checkpoint.load(self.cut(self.folder / "two", 35))
        # An epoch has 23 steps of two ranks.
        self.assertEqual(files["sampler"]["position"], (35 - 23) * BATCH * 2)
        training = Training()
        restored = checkpoint.CheckpointManager(self.folder / "two-35").restore(training.state)
        self.assertRegex(restored.remarks[0], r"was saved by a world of 2, this one has 1: the")
        self.assertEqual(len(training.sampler), 1437 - files["sampler"]["position"])

    def test_each_side_reads_whose_the_directory_was(self):
        run1 = self.folder / "run1"
        for job in ("x", "y"):
            with unittest.mock.patch.object(checkpoint, "_OWNER", job), \
                    unittest.mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "1",
                                                          "TORCHELASTIC_RUN_ID": job}):
                Training().save(run1)
        self.train(run1, options=["--checkpoint-every=1000"])
        claim = json.loads((run1 / ".claim.json").read_text())
        self.assertEqual((claim["claim"], claim["displaced"]), (3, [["x", 0], ["y", 0]]))
        self.assertEqual([step for step, _ in claim["accepted"]], [0])
        with unittest.mock.patch.dict(os.environ, {
                "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x",
                "DDPRUN_GENERATION": "1"}):
            with self.assertRaisesRegex(checkpoint.DirectoryTakenError, r"^job '\w+:\w+' has"):
                checkpoint.CheckpointManager(run1)

    def test_shards_are_what_rank_0_alone_would_have_written(self):
        for kind in ("begin-shards", "begin"):
            state_file_test.probe(frame.BIN, kind, self.folder / kind, ranks=2)
        for name, model, optimizer_name in state_file_test.cases():
            shards, plain = (checkpoint.load(self.folder / kind / name, mmap=kind == "begin")
                             for kind in ("begin-shards", "begin"))
            self.assertEqual(list(shards), list(plain))
            shards["rng"] = plain["rng"]  # the two programs have other random numbers
            self.assertEqual(str(shards), str(plain))
            net, data = state_file_test.make_model(model)
            state = checkpoint.TrainingState(
                net, state_file_test.OPTIMIZERS[optimizer_name](net.parameters()))
            restored = checkpoint.CheckpointManager(self.folder / "begin-shards" / name,
                                                    read_only=True).restore(state)
            self.assertEqual(restored.step, state_file_test.BEGUN)
            self.assertTrue(torch.equal(net.state_dict()[next(iter(plain["model"]))],
                                        next(iter(plain["model"].values()))))
            state_file_test.train(net, data, state.optimizer, restored.step, 1)

    def test_a_manifest_with_any_metric_is_one_for_cpp(self):
        from ddprun import _checkpoint
        import random
        numbers = random.Random(25)
        metrics = [0.0, -0.0, 1.0, 0.1, -2.5, 1e15, 1234567890123456.0, 1e16, 1e22, 1e-5, 5e-324,
                   2.0 ** 60, 2.0 ** -60, 123456.789, 1e300]
        metrics += [numbers.uniform(-1, 1) * 10.0 ** numbers.randrange(-30, 30) for _ in range(100)]
        directory = _checkpoint.directory.CheckpointDirectory(str(self.folder / "metrics"))
        directory.prepare(0, "owner", "")
        for step, metric in enumerate(metrics):
            manifest = _checkpoint.names.Manifest(step, 0, 0, 1, metric=metric, data="ü\"\\\n\x7f")
            directory.announce(manifest, lambda file: file.write(b"x"))
            read = directory.read_manifest(step)[0].metric
            self.assertAlmostEqual(read, metric, delta=abs(metric) * 1e-12 + 1e-290)
        output = frame.run([frame.BIN / "ddprun-ckpt", "verify", self.folder / "metrics"])
        self.assertEqual(output.count(": whole (SHA-256)\n"), len(metrics), output)


if __name__ == "__main__":
    frame.main()
