"""Tests ddprun.checkpoint: damage, kills at any call, failures of the disk, owners, and ranks.

DDPRUN_SAVE_KILLS=n: how often a process that saves is killed.
"""
import contextlib
import json
import os
import pathlib
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
import unittest.mock
import warnings

import frame
import needs

needs.module("torch")
import torch  # noqa: E402

from ddprun import _checkpoint, _commands, checkpoint  # noqa: E402

KILLS = int(os.environ.get("DDPRUN_SAVE_KILLS", "4"))
CALLS = ("open", "write", "fsync", "rename", "unlink", "link", "mkdir")


class Training:
    """A training whose weights say the step."""

    def __init__(self, value=0.0):
        self.net = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.state = checkpoint.TrainingState(self.net, self.optimizer, extra={"lines": [1, "ü"]},
                                              has_position=False)
        self.be(value)

    def be(self, value):
        with torch.no_grad():
            self.net.weight.fill_(value)
        return self.state

    def value(self):
        assert self.net.weight.unique().numel() == 1
        return self.net.weight[0, 0].item()


def save(directory, *steps, **options):
    manager = checkpoint.CheckpointManager(directory, **options)
    training = Training()
    manager.restore(training.state)
    for step in steps:
        manager.save(step, training.be(step))
    manager.wait()
    return manager


def loaded(directory, **options):
    """Returns the step of the newest checkpoint, and the lines about those passed over."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        contents = checkpoint.load(directory, **options)
    assert contents["model"]["weight"].unique().item() == contents["step"], contents
    return contents["step"], [str(one.message) for one in caught]


def in_child(part):
    """Runs a part in a forked process. Returns its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            part()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@contextlib.contextmanager
def every_call(note):
    """Calls note(NAME, PATH) before each system call that changes files."""
    with contextlib.ExitStack() as stack:
        for name in CALLS:
            real = getattr(os, name)

            def call(*args, _name=name, _real=real, **options):
                note(_name, str(args[0]))
                return _real(*args, **options)

            stack.enter_context(unittest.mock.patch.object(_checkpoint.directory.os, name, call))
        yield


class Damage(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1 = self.folder / "run1"

    def newest(self):
        return self.run1 / "step-000000000002.pt"

    def check_passed_over(self, pattern):
        step, lines = loaded(self.run1)
        self.assertEqual(step, 1)
        self.assertRegex(lines[0], f"^passed over step 2: read .*{pattern}")
        self.assertEqual(len(lines), 1)
        with self.assertRaisesRegex(checkpoint.CheckpointError, pattern):
            checkpoint.load(self.run1, 2)

    def test_a_flipped_byte_of_the_data_is_noticed(self):
        save(self.run1, 1, 2)
        whole = self.newest().read_bytes()
        for at in range(0, len(whole), len(whole) // 20):
            self.newest().write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1:])
            self.check_passed_over("step-000000000002.pt: its SHA-256 is not the one in its")

    def test_a_flipped_byte_of_the_manifest_is_noticed(self):
        save(self.run1, 1, 2)
        manifest = self.run1 / "step-000000000002.json"
        whole = manifest.read_bytes()
        directory = _checkpoint.directory.CheckpointDirectory(str(self.run1))
        for at in range(len(whole)):
            for bit in (1, 32):
                manifest.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1:])
                with self.assertRaises(checkpoint.DamagedError):
                    directory.read_manifest(2)
        self.check_passed_over("step-000000000002.json: ")

    def test_cut_longer_and_missing_files_are_noticed(self):
        save(self.run1, 1, 2)
        whole = self.newest().read_bytes()
        for content in (whole[:-1], whole[:100], b"", whole + b"x"):
            self.newest().write_bytes(content)
            self.check_passed_over(f"it has {len(content)} bytes, but its manifest has")
        self.newest().unlink()
        self.check_passed_over("No such file or directory")
        os.mkfifo(self.newest())
        self.check_passed_over("it is not a regular file")

    def test_without_its_manifest_a_checkpoint_is_absent_and_is_removed(self):
        save(self.run1, 1, 2)
        (self.run1 / "step-000000000002.json").unlink()
        self.assertEqual(loaded(self.run1), (1, []))
        (self.run1 / "mine.pt").write_text("")
        save(self.run1)
        self.assertFalse(self.newest().exists())
        self.assertTrue((self.run1 / "mine.pt").exists())

    def test_a_restore_passes_over_what_is_damaged_and_the_next_save_removes_it(self):
        save(self.run1, 1, 2)
        self.newest().write_bytes(b"x")
        manager = checkpoint.CheckpointManager(self.run1)
        training = Training(7.0)
        restored = manager.restore(training.state)
        self.assertEqual((restored.step, training.value()), (1, 1.0))
        self.assertRegex(restored.skipped[0], "^step 2: read .* it has 1 bytes, but its manifest")
        self.assertEqual(training.state.extra, {"lines": [1, "ü"]})
        manager.save(2, training.be(2))
        manager.wait()
        self.assertEqual(loaded(self.run1), (2, []))
        self.assertEqual(len(list(self.run1.glob("step-*"))), 4)

    def test_no_checkpoint_at_all_is_an_error_of_load(self):
        for missing in (self.run1, self.folder):
            with self.assertRaisesRegex(FileNotFoundError, "has no whole checkpoint$"):
                checkpoint.load(missing)
        save(self.run1, 3)
        with self.assertRaisesRegex(FileNotFoundError, r"no checkpoint of step 4 \(it has 3\)$"):
            checkpoint.load(self.run1, 4)

    def test_a_hostile_pickle_is_refused_and_not_run(self):
        mark = self.folder / "was_run"

        class Hostile:
            def __reduce__(self):
                return os.system, (f"touch {mark}",)

        directory = _checkpoint.directory.CheckpointDirectory(str(self.run1))
        directory.prepare(0, "owner", "")
        for step, write in enumerate((
                lambda file: torch.save({"model": Hostile()}, file),
                lambda file: torch.save({"model": Hostile()}, file,
                                        _use_new_zipfile_serialization=False),
                lambda file: file.write(pickle.dumps(Hostile())),
                lambda file: file.write(b"PK\x03\x04" + bytes(100)))):
            directory.announce(_checkpoint.names.Manifest(step, 0, 0, 1), write)
            for mmap in (False, True):
                with self.assertRaisesRegex(checkpoint.CheckpointError,
                                            rf"^read .*/step-{step:012}.pt: [^\n]+$") as caught:
                    checkpoint.load(self.run1, mmap=mmap)
                if step == 0:
                    self.assertIn("it holds 'posix.system', only tensors", str(caught.exception))
            with self.assertRaises(checkpoint.CheckpointError):
                checkpoint.CheckpointManager(self.run1, read_only=True).restore(Training().state)
        self.assertFalse(mark.exists())

    def test_tensors_go_where_map_location_says(self):
        save(self.run1, 1)
        self.assertEqual(checkpoint.load(self.run1, map_location="meta")["model"]["weight"].device,
                         torch.device("meta"))

    def test_a_manifest_of_another_format_is_an_error_and_stays(self):
        save(self.run1, 1, 2)
        manifest = self.run1 / "step-000000000002.json"
        document = json.loads(manifest.read_text())
        document["format"] = 2
        document.pop("manifest_sha256")
        document["manifest_sha256"] = _checkpoint.names._sha256(_checkpoint.names._dump(document))
        manifest.write_text(_checkpoint.names._dump(document, indent=1) + "\n")
        with self.assertRaisesRegex(checkpoint.UnsupportedError, "it has format 2, this program"):
            checkpoint.load(self.run1)


class Saves(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1 = self.folder / "run1"

    def test_the_state_is_that_of_the_call_although_the_training_goes_on(self):
        manager = checkpoint.CheckpointManager(self.run1)
        training = Training()
        tied = training.net.weight
        training.state.tensors = {"tied": tied, "slice": torch.arange(1000.0)[3:5]}
        for step in (1, 2):
            manager.save(step, training.be(step))
            training.be(-1.0)
        manager.wait()
        contents = checkpoint.load(self.run1)
        self.assertEqual(contents["model"]["weight"].unique().item(), 2.0)
        self.assertEqual(contents["model"]["weight"].data_ptr(),
                         contents["tensors"]["tied"].data_ptr())
        self.assertEqual(contents["tensors"]["slice"].untyped_storage().nbytes(), 8)

    def test_the_newest_and_the_best_ones_are_kept(self):
        manager = checkpoint.CheckpointManager(self.run1, keep_last=2, keep_best=1)
        training = Training()
        for step, metric in enumerate((0.5, 0.1, float("nan"), 0.3, None)):
            training.state.metric = metric
            manager.save(step, training.be(step))
        manager.wait()
        self.assertEqual(_checkpoint.directory.CheckpointDirectory(str(self.run1)).steps(),
                         [4, 3, 1])
        self.assertTrue(manager.best().endswith("step-000000000001.pt"))

    def test_a_later_step_of_another_run_is_not_passed_by(self):
        save(self.run1, 5)
        manager = checkpoint.CheckpointManager(self.run1)
        with self.assertRaisesRegex(ValueError, "holds a checkpoint of step 5 that this run did "
                                                "not restore; call restore"):
            manager.save(3, Training().state)
        with self.assertRaisesRegex(ValueError, "step -1 is negative"):
            manager.save(-1, Training().state)
        reader = checkpoint.CheckpointManager(self.run1, read_only=True)
        with self.assertRaisesRegex(ValueError, "the option read_only is set"):
            reader.save(9, Training().state)

    def test_the_same_step_again_replaces_the_first_one(self):
        save(self.run1, 5)
        save(self.run1, 5)
        self.assertEqual(sorted(one.name for one in self.run1.glob("step-*")),
                         ["step-000000000005-2.pt", "step-000000000005.json"])
        self.assertEqual(loaded(self.run1), (5, []))

    def test_a_busy_writer_is_skipped_if_the_option_says_so(self):
        manager = checkpoint.CheckpointManager(self.run1, skip_when_busy=True)
        go, _ = os.pipe(), None
        real = os.fsync

        def wait(descriptor):
            os.read(go[0], 1)
            return real(descriptor)

        training = Training()
        with unittest.mock.patch.object(_checkpoint.directory.os, "fsync", wait):
            self.assertTrue(manager.save(1, training.be(1)))
            self.assertFalse(manager.save(2, training.be(2)))
            os.write(go[1], b"x" * 100)
            manager.wait()
        self.assertEqual(loaded(self.run1), (1, []))
        for end in go:
            os.close(end)

    def test_a_step_and_an_epoch_are_integers(self):
        manager = checkpoint.CheckpointManager(self.run1)
        training = Training()
        for step in (5.0, True, "5", torch.tensor(1.5)):
            with self.assertRaisesRegex(TypeError, "^save a checkpoint: step .*expected an int"):
                manager.save(step, training.state)
        with self.assertRaisesRegex(ValueError, "step 9223372036854775808 has more than 64 bits"):
            manager.save(1 << 63, training.state)
        training.state.epoch = 1.5
        with self.assertRaisesRegex(TypeError, "epoch 1.5 is a float"):
            manager.save(1, training.state)
        self.assertEqual(list(self.run1.glob("step-*")), [])
        training.state.epoch = torch.tensor(2)
        manager.save(torch.tensor(5), training.be(5))  # as a numpy int64
        manager.wait()
        self.assertEqual(loaded(self.run1), (5, []))

    def test_the_default_device_of_the_program_is_of_no_account(self):
        training = Training()
        sampler = checkpoint.DistributedSampler(range(9), 1, 0)
        training.state.sampler = sampler
        order = list(sampler)
        with torch.device("meta"):
            manager = save(self.run1)
            manager.save(1, training.be(1))
            manager.wait()
            self.assertEqual(list(sampler), order)
            self.assertEqual(manager.restore(training.state).step, 1)
        self.assertEqual(loaded(self.run1), (1, []))
        self.assertEqual(training.value(), 1.0)

    def test_views_are_saved_as_they_look_and_strides_stay(self):
        one = torch.tensor([1 + 2j])
        net = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        for asynchronous in (True, False):
            manager = checkpoint.CheckpointManager(self.run1, asynchronous=asynchronous)
            manager.save(1, checkpoint.TrainingState(net, tensors={
                "one": one, "conj": one.conj(), "imag": one.conj().imag}))
            manager.wait()
            contents = checkpoint.load(self.run1)
            self.assertEqual([contents["tensors"][name].item() for name in ("one", "conj", "imag")],
                             [1 + 2j, 1 - 2j, -2.0])
            self.assertEqual(contents["model"]["weight"].stride(), net.weight.stride())

    def test_sharded_modules_are_refused_by_name(self):
        class FullyShardedDataParallel(torch.nn.Module):
            pass

        state = checkpoint.TrainingState(torch.nn.Sequential(FullyShardedDataParallel()))
        manager = save(self.run1, 1)
        for call in (lambda: manager.save(2, state), lambda: manager.restore(state)):
            with self.assertRaisesRegex(TypeError, "the model is FullyShardedDataParallel, .*"
                                                   "use torch.distributed.checkpoint"):
                call()

    def test_the_gpu_of_the_model_has_the_generator(self):
        model = unittest.mock.Mock()
        model.parameters.return_value = [unittest.mock.Mock(device=torch.device("cuda:3"))]
        state = checkpoint.TrainingState(model)
        with unittest.mock.patch.multiple(
                torch.cuda, is_available=lambda: True, is_initialized=lambda: True,
                current_device=lambda: 0, device_count=lambda: 4,
                get_rng_state=unittest.mock.Mock(return_value=torch.get_rng_state()),
                set_rng_state=unittest.mock.DEFAULT) as mocks:
            saved = _checkpoint.state.own_generators(state)
            self.assertEqual(torch.cuda.get_rng_state.call_args[0], (torch.device("cuda:3"),))
            _checkpoint.state.own_generators(checkpoint.TrainingState())
            self.assertEqual(torch.cuda.get_rng_state.call_args[0], ("cuda:0",))
            rng = [{key: torch.get_rng_state() for key in saved}]
            self.assertEqual(list(_checkpoint.state._fill_generators(state, {"rng": rng}, "", 0)),
                             [])
            self.assertEqual(mocks["set_rng_state"].call_args[0][1], torch.device("cuda:3"))

    def test_a_wrong_epoch_is_a_warning_and_a_missing_sampler_too(self):
        def said(*epochs, **options):
            manager = checkpoint.CheckpointManager(self.folder / str(epochs), asynchronous=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step, epoch in enumerate(epochs):
                    manager.save(step, checkpoint.TrainingState(epoch=epoch, **options))
            return [str(one.message) for one in caught]

        sampler = checkpoint.DistributedSampler(range(9), 1, 0)
        sampler.set_epoch(3)
        self.assertEqual(said(3, 4, sampler=sampler), [])
        self.assertEqual(said(0, 0, sampler=sampler), [
            "save a checkpoint: TrainingState.epoch is 0, but its sampler is in epoch 3: a resumed "
            "run begins at epoch 0 and trains epochs twice; let the loop count in "
            "TrainingState.epoch"])
        self.assertRegex(said(5, sampler=sampler)[0], "every epoch has the same order")
        self.assertEqual(said(1, 2), [])
        self.assertRegex(said(1, 1, 1)[0], "TrainingState.sampler is None: the position in")
        self.assertEqual(said(2, 2, 2, has_position=False), [])

    def test_what_cannot_be_saved_is_named(self):
        manager = checkpoint.CheckpointManager(self.run1)
        training = Training()
        for state, pattern in (
                (dict(extra={"x": [object()]}), r"extra\['x'\]\[0\] is a object, only None"),
                (dict(extra=[torch.ones(1)]), r"extra\[0\] is a Tensor, .*\(use .item\(\), or"),
                (dict(extra={1: 2}), "extra has the key 1, a str was expected"),
                (dict(extra=1 << 70), "extra is 1180591620717411303424, which has more than 64"),
                (dict(tensors={"a": torch.eye(2).to_sparse()}), r"tensors\['a'\] is a tensor of "),
                (dict(tensors={"a/b": torch.eye(2)}), "invalid name 'a/b'"),
                (dict(sampler=[1]), "TrainingState.sampler: list does not know its position")):
            with self.assertRaisesRegex((TypeError, ValueError), pattern):
                manager.save(1, checkpoint.TrainingState(training.net, **state))
        self.assertEqual(list(self.run1.glob("step-*")), [])

    def test_another_training_is_refused_before_anything_is_filled(self):
        save(self.run1, 1)
        training = Training(7.0)
        sgd = torch.optim.SGD(training.net.parameters(), 0.1)
        for state, pattern in (
                (checkpoint.TrainingState(torch.nn.Linear(4, 2)),
                 r"'weight' is Float of shape \[3, 4\] in the file, Float of shape \[2, 4\] in the "
                 "model"),
                (checkpoint.TrainingState(torch.nn.Sequential(training.net)),
                 "it has no '0.weight', '0.bias'; the model has no 'weight', 'bias'"),
                (checkpoint.TrainingState(training.net, sgd),
                 "it holds the state of Adam, this optimizer is SGD"),
                (checkpoint.TrainingState(training.net, models={"a": training.net}),
                 "of 'models' it has no 'a'")):
            with self.assertRaisesRegex(ValueError, rf"^restore .*step-0+1.pt: {pattern}"):
                checkpoint.CheckpointManager(self.run1).restore(state)
        self.assertEqual(training.value(), 7.0)

    def test_another_optimizer_or_sampler_is_refused_before_anything_is_filled(self):
        def make(order, size=9, groups=1):
            training = Training(7.0)
            net = training.net
            parameters = [getattr(net, name) for name in order]
            training.state.optimizer = torch.optim.Adam(
                parameters if groups == 1 else [{"params": [one]} for one in parameters])
            training.state.sampler = checkpoint.DistributedSampler(range(size), 1, 0)
            return training

        first = make(("weight", "bias"))
        first.net(torch.ones(4)).sum().backward()
        first.state.optimizer.step()
        manager = save(self.run1)
        manager.save(1, first.be(1.0))
        manager.wait()
        for other, pattern in (
                (make(("bias", "weight")),
                 r"'exp_avg' of parameter 0 of Adam does not have the shape of its parameter: "
                 r"\[3, 4\] in the file, \[3\] in this training"),
                (make(("weight", "bias"), groups=2),
                 r"Adam has groups of \[2\] parameters in the file, of \[1, 1\] in this training"),
                (make(("weight", "bias"), size=8),
                 "DistributedSampler: the saved state has dataset_size 9, this sampler has 8")):
            before = torch.get_rng_state()
            with self.assertRaisesRegex(ValueError, rf"^restore .*step-0+1.pt: {pattern}"):
                manager.restore(other.state)
            self.assertEqual(other.value(), 7.0)
            self.assertEqual(other.state.optimizer.state, {})
            self.assertTrue(torch.equal(torch.get_rng_state(), before))
        self.assertEqual(manager.restore(make(("weight", "bias")).state).step, 1)

    def restore_of(self, **contents):
        """Restores a file whose contents differ from those of a save. None: without that key."""
        training = Training(1.0)
        top = _checkpoint.state.contents_of(training.state, step=1, generation=0, generators=[
            _checkpoint.state.own_generators(training.state)])
        top = {key: value for key, value in {**top, **contents}.items() if value is not None}
        directory = _checkpoint.directory.CheckpointDirectory(str(self.run1))
        directory.prepare(0, "owner", "")
        directory.announce(_checkpoint.names.Manifest(1, 0, 0, 1), lambda file: torch.save(top,
                                                                                          file))
        training.be(7.0)
        try:
            return checkpoint.CheckpointManager(self.run1, read_only=True).restore(training.state)
        except Exception:
            self.assertEqual(training.value(), 7.0)
            raise

    def test_a_file_of_other_contents_is_refused_before_anything_is_filled(self):
        for contents in ({"epoch": None}, {"epoch": "1"}, {"optimizer": [1]}, {"rng": [1]}):
            with self.subTest(contents), self.assertRaisesRegex(
                    checkpoint.CheckpointError, "^restore .*step-0+1[-0-9]*.pt: its contents are "
                                                "not those of a checkpoint: "):
                self.restore_of(**contents)

    def test_what_only_c_plus_plus_restores_is_a_remark_or_refused(self):
        with self.assertRaisesRegex(ValueError, "within an accumulation, with gradients"):
            self.restore_of(gradients={"weight": torch.ones(3, 4)})
        remarks = self.restore_of(comm_hook={"name": "PowerSgd"}, averager={}).remarks
        self.assertRegex(remarks[0], "has the state of a communication hook, which is not restored")
        self.assertRegex(remarks[1], "has the state of a PeriodicModelAverager, which is not")

    def test_nothing_that_is_restored_stays_mapped(self):
        net = torch.nn.Linear(300, 1)
        lbfgs = torch.optim.LBFGS(net.parameters())

        def closure():
            lbfgs.zero_grad()
            loss = net(torch.ones(300)).square().sum()
            loss.backward()
            return loss

        lbfgs.step(closure)
        manager = checkpoint.CheckpointManager(self.run1)
        state = checkpoint.TrainingState(net, lbfgs)
        manager.save(1, state)
        manager.restore(state)
        maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
        self.assertEqual([line for line in maps if str(self.run1) in line], [])

    def test_a_checkpoint_may_have_more_shards_than_a_process_open_files(self):
        save(self.run1, 1)
        training, files = Training(2.0), []
        top = {**checkpoint.load(self.run1), "step": 2, "model": training.net.state_dict()}
        for shard in range(40):
            part = {"shard": shard, "shards": 40, "model": {}, "optimizer": {"state": {}}}
            if shard == 0:
                part = {**part, **top, "model_names": list(top["model"])}
            path = self.run1 / f"step-{2:012}.shard-{shard:04}.pt"
            with _checkpoint.directory.AtomicFile(str(path)) as file:
                torch.save(part, file)
                files.append(file.commit())
        directory = _checkpoint.directory.CheckpointDirectory(str(self.run1))
        directory._announce(_checkpoint.names.Manifest(2, 0, 0, 40, files=tuple(files), claim=1))

        def part():
            own = len(os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (own + 10, own + 10))
            assert loaded(self.run1) == (2, [])
            reader = checkpoint.CheckpointManager(self.run1, read_only=True)
            assert reader.restore(training.be(7.0)).step == 2
            assert training.value() == 2.0

        self.assertEqual(in_child(part), 0)

    def test_a_file_that_cannot_be_read_is_not_called_damaged(self):
        save(self.run1, 1)
        for error, pattern in ((OSError(5, "Input/output error"), "^.Errno 5. read .*step-0+1.pt: "
                                                                  "Input/output error$"),
                               (RuntimeError("DefaultCPUAllocator: can't allocate memory"),
                                "^DefaultCPUAllocator: ")):
            with unittest.mock.patch.object(torch, "load", side_effect=error):
                with self.assertRaisesRegex(type(error), pattern):
                    checkpoint.load(self.run1)

    def test_a_claim_of_no_number_is_nobody_s(self):
        save(self.run1, 1)
        (self.run1 / ".claim.json").write_text(
            '{"claim": 1e999, "generation": 0, "owner": "", "accepted": []}')
        self.assertEqual(loaded(self.run1), (1, []))

    def test_schedules_and_named_objects_come_back(self):
        def make():
            net = torch.nn.Linear(2, 2)
            sgd = torch.optim.SGD(net.parameters(), 1.0)
            inner = [torch.optim.lr_scheduler.LinearLR(sgd, total_iters=2),
                     torch.optim.lr_scheduler.MultiStepLR(sgd, [1, 3, 3])]
            schedule = torch.optim.lr_scheduler.SequentialLR(sgd, inner, [2])
            return checkpoint.TrainingState(models={"g": net}, optimizers={"g": sgd},
                                            schedulers={"g": schedule})

        def rates(state, steps):
            found = []
            for _ in range(steps):
                state.optimizers["g"].step()
                state.schedulers["g"].step()
                found.append(state.schedulers["g"].get_last_lr())
            return found

        first, second = make(), make()
        rates(first, 3)
        manager = checkpoint.CheckpointManager(self.run1, asynchronous=False)
        manager.save(3, first)
        manager.restore(second)
        self.assertEqual(rates(first, 4), rates(second, 4))
        self.assertTrue(torch.equal(first.models["g"].weight, second.models["g"].weight))

    def test_a_compiled_model_has_the_names_of_the_module_within(self):
        save(self.run1, 1)
        training = Training()
        compiled = torch.nn.Module()  # torch.compile() makes such a one, after seconds of imports
        compiled._orig_mod = training.net
        compiled = checkpoint.TrainingState(compiled)
        checkpoint.CheckpointManager(self.run1).restore(compiled)
        self.assertEqual(training.value(), 1.0)

    def test_it_imports_no_pytorch(self):
        frame.run([sys.executable, "-c", "import ddprun, sys; ddprun.checkpoint.load; "
                                         "sys.exit('torch' in sys.modules)"])


class Sampler(frame.Test):
    def samplers(self, ranks, size=23, **options):
        return [checkpoint.DistributedSampler(range(size), ranks, rank, **options)
                for rank in range(ranks)]

    def test_the_order_is_that_of_pytorch(self):
        for options in ({}, {"drop_last": True}, {"shuffle": False}, {"seed": 7}):
            for rank, sampler in enumerate(self.samplers(3, **options)):
                theirs = torch.utils.data.DistributedSampler(range(23), 3, rank, **options)
                for epoch in (0, 4):
                    for one in (sampler, theirs):
                        one.set_epoch(epoch)
                    self.assertEqual(len(sampler), len(theirs))
                    self.assertEqual(list(sampler), list(theirs))

    def test_another_world_gets_each_sample_that_is_left_once(self):
        whole = list(self.samplers(1)[0])
        old, new = self.samplers(3), self.samplers(2)
        parts = [iter(one) for one in old]
        done = [next(part) for _ in range(4) for part in parts]
        self.assertEqual(old[0].position, 12)
        for sampler in new:
            sampler.load_state_dict(json.loads(json.dumps(old[0].state_dict())))
            sampler.set_epoch(0)
        rest = [index for pair in zip(*new) for index in pair]
        self.assertEqual(done + rest, whole + whole[:1])  # filled up

    def test_a_look_at_the_first_batch_loses_nothing_and_a_loader_may_be_ahead(self):
        for workers in (0, 1):
            sampler = self.samplers(1)[0]
            sampler.load_state_dict({**sampler.state_dict(), "position": 8})
            ahead = {"num_workers": 1, "prefetch_factor": 9} if workers else {}
            loader = torch.utils.data.DataLoader(range(23), 4, sampler=sampler, **ahead)
            first = next(iter(loader)).tolist()
            found, positions = [], []
            for batch in sampler.batches(loader):
                found += batch.tolist()
                positions.append(sampler.position)
            self.assertEqual(found[:4], first)
            self.assertEqual(found, list(self.samplers(1)[0])[8:])
            self.assertEqual(positions, [12, 16, 20, 23])
            # The next pass is a whole one.
            self.assertEqual(sum(len(batch) for batch in sampler.batches(loader)), 23)
            self.assertEqual(len(list(sampler)), 23)
            self.assertEqual(len(list(sampler)), 23)

    def test_the_rest_of_a_pass_goes_on_with_the_same_random_numbers(self):
        # A DataLoader draws one when its iteration begins.
        def draws(sampler, batches):
            loader = torch.utils.data.DataLoader(range(23), batch_size=4, sampler=sampler)
            for _ in sampler.batches(loader):
                batches.append((torch.rand(1).item(), sampler.state_dict(), torch.get_rng_state()))
            return batches

        torch.manual_seed(5)
        undisturbed = draws(self.samplers(1)[0], [])
        for number, (_, position, generator) in enumerate(undisturbed):
            sampler = self.samplers(1)[0]
            sampler.load_state_dict(position)
            torch.set_rng_state(generator)
            resumed = [draw for draw, _, _ in draws(sampler, [])]
            self.assertEqual(resumed, [draw for draw, _, _ in undisturbed[number + 1:]])
            self.assertTrue(torch.equal(torch.get_rng_state(), undisturbed[-1][2]))

    def test_a_batch_sampler_is_counted_by_its_own_size(self):
        sampler = self.samplers(1)[0]
        data = torch.utils.data
        for loader, size in (
                (data.DataLoader(range(23), batch_sampler=data.BatchSampler(sampler, 5, False)), 5),
                (data.DataLoader(range(23), batch_size=None, sampler=sampler), 1)):
            batches = sampler.batches(loader)
            for number in (1, 2, 3):
                next(batches)
                self.assertEqual(sampler.position, number * size)
            batches.close()
        for loader in (data.DataLoader(range(23), batch_sampler=[[1, 2], [3]]), [1, 2]):
            with self.assertRaisesRegex(ValueError, "^DistributedSampler.batches: list has no "
                                                    "batch_size"):
                next(sampler.batches(loader))

    def test_a_state_of_another_dataset_is_refused(self):
        sampler = self.samplers(1)[0]
        for change, pattern in (
                ({"dataset_size": 5}, "has dataset_size 5, this sampler has 23"),
                ({"seed": 1}, "has seed 1, this"), ({"position": -1}, "position -1, not a count"),
                ({"position": 99}, "has position 99; a world of 1 deals 23 samples"),
                ({"epoch": "x"}, "has epoch 'x', not a count")):
            with self.assertRaisesRegex(ValueError, pattern):
                sampler.load_state_dict({**sampler.state_dict(), **change})
        for arguments in ((range(3), 2, 2), ([], 1, 0)):
            with self.assertRaisesRegex(ValueError, "^DistributedSampler: "):
                checkpoint.DistributedSampler(*arguments)


class Failures(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1 = self.folder / "run1"

    runs = 0

    @contextlib.contextmanager
    def new_run(self):
        """Makes this process a later generation, which takes a directory from the one before."""
        self.runs += 1
        with unittest.mock.patch.object(checkpoint, "_OWNER", f"run {self.runs}"), \
                unittest.mock.patch.dict(os.environ, {
                    "RANK": "0", "WORLD_SIZE": "1", "DDPRUN_GENERATION": str(self.runs)}):
            yield

    def calls_of_a_save(self):
        calls = []
        with self.new_run():
            save(self.folder / "counted", 1, keep_last=1)
        with self.new_run(), every_call(lambda *call: calls.append(call)):
            save(self.folder / "counted", 2, 3, keep_last=1)
        return calls

    def test_the_disk_has_the_data_before_the_manifest_names_it(self):
        save(self.run1, 1)
        calls, paths = [], {}
        with contextlib.ExitStack() as stack:
            for name in ("open", "fsync", "rename"):
                def call(*args, _name=name, _real=getattr(os, name), **options):
                    result = _real(*args, **options)
                    path = paths.get(args[0], "") if _name == "fsync" else str(args[-1] if (
                        _name == "rename") else args[0])
                    if _name == "open":
                        paths[result] = path
                    else:
                        kind = "directory" if path == str(self.run1) else (
                            (re.findall(r"\.(pt|json)", path) or [path])[0])
                        calls.append(f"{_name} {kind}")
                    return result

                stack.enter_context(unittest.mock.patch.object(_checkpoint.directory.os, name,
                                                               call))
            manager = checkpoint.CheckpointManager(self.run1, asynchronous=False)
            manager.restore(Training().state)
            del calls[:]
            manager.save(2, Training(2).state)
        self.assertEqual(calls, ["fsync pt", "rename pt", "fsync directory",
                                 "fsync json", "rename json", "fsync directory"])

    def test_a_large_file_goes_to_the_disk_by_and_by_with_activity(self):
        flushes = []

        def flush(descriptor, _real=os.fdatasync):
            flushes.append(descriptor)
            return _real(descriptor)

        with unittest.mock.patch.object(_checkpoint.directory, "_SYNC_BYTES", 1 << 20), \
                unittest.mock.patch.object(_checkpoint.directory, "_BUFFER_BYTES", 1 << 19), \
                unittest.mock.patch.object(_checkpoint.directory.os, "fdatasync", flush), \
                unittest.mock.patch.object(checkpoint, "report_activity",
                                           side_effect=lambda: flushes.append("active")):
            manager = checkpoint.CheckpointManager(self.run1, asynchronous=False)
            manager.save(1, checkpoint.TrainingState(tensors={"large": torch.ones(1 << 20)}))
        self.assertEqual(len(flushes) - flushes.count("active"), 4)
        after_each = [after for before, after in zip(flushes, flushes[1:]) if before != "active"]
        self.assertEqual(after_each, ["active"] * 4)

    def test_a_thread_that_cannot_start_is_an_error_of_that_save_only(self):
        manager, training = checkpoint.CheckpointManager(self.run1), Training()
        with unittest.mock.patch.object(checkpoint.threading.Thread, "start",
                                        side_effect=RuntimeError("can't start new thread")):
            with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
                manager.save(1, training.be(1))
        manager.save(2, training.be(2))
        manager.wait()
        self.assertEqual(loaded(self.run1), (2, []))

    def test_a_file_that_cannot_be_removed_keeps_no_other(self):
        save(self.run1, 1, 2, 9)
        (self.run1 / "step-000000000009.pt").write_bytes(b"x")
        manager = checkpoint.CheckpointManager(self.run1, keep_last=1, asynchronous=False)
        training = Training()
        self.assertEqual(manager.restore(training.state).step, 2)
        real = os.unlink

        def unlink(path):
            if "0009" in str(path):
                raise PermissionError(1, "Operation not permitted")
            real(path)

        with unittest.mock.patch.object(_checkpoint.directory.os, "unlink", unlink), \
                warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in (3, 4, 5):
                manager.save(step, training.be(step))
        left = sorted(one.name for one in self.run1.glob("step-*.json"))
        self.assertEqual(left, ["step-000000000005.json", "step-000000000009.json"])
        said = [str(one.message) for one in caught if "stays" in str(one.message)]
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], "an old checkpoint stays: .*step-0+9.json: Operation not permi")

    def test_a_kill_at_any_call_leaves_the_newest_checkpoint_whole(self):
        calls = self.calls_of_a_save()
        self.assertTrue(any(".claim.json" in path for name, path in calls if name == "rename"))
        self.assertEqual(calls[-1][0], "unlink")
        seed = os.environ.get("DDPRUN_TEST_SEED", "25")
        print(f"seed: DDPRUN_TEST_SEED={seed}", flush=True)
        dice = random.Random(seed)
        last = 1
        with self.new_run():
            save(self.run1, last, keep_last=1)
        for number in range(KILLS):
            # The first kill is at the last call.
            point, self.count = dice.randrange(len(calls)) if number else len(calls) - 1, 0

            def note(_name, _path):
                if self.count == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.count += 1

            def part():
                with every_call(note):
                    save(self.run1, last + 1, last + 2, keep_last=1)

            with self.new_run():
                self.assertEqual(in_child(part), signal.SIGKILL, f"at call {point}")
            step, lines = loaded(self.run1)
            self.assertTrue(last <= step <= last + 2 and not lines, (step, last, point, lines))
            last = step
            with self.new_run():
                save(self.run1, last + 1, keep_last=1)
            last += 1
            self.assertEqual(loaded(self.run1), (last, []))
            left = sorted(one.name for one in self.run1.iterdir())
            self.assertEqual(left, [".claim.json", ".claim.lock", f"step-{last:012}.json",
                                    f"step-{last:012}.pt"])
        self.assertIn("whole", frame.run([frame.BIN / "ddprun-ckpt", "verify", self.run1]))

    def test_each_call_that_fails_is_an_error_with_the_file_and_leaves_nothing(self):
        save(self.run1, 1)
        point = failed = 0
        while True:
            seen = []
            is_done = False  # all that must not fail was done before the failure

            def note(name, path):
                nonlocal is_done
                if name in ("open", "write", "fsync", "rename"):
                    seen.append((name, path))
                    if len(seen) == point + 1:
                        is_done = (self.run1 / "step-000000000002.json").exists() or (
                            path.endswith(".claim.lock"))
                        raise OSError(28, "No space left on device")

            manager = checkpoint.CheckpointManager(self.run1, asynchronous=False)
            training = Training()
            self.assertEqual(manager.restore(training.state).step, 1)
            error = None
            with every_call(note):
                try:
                    manager.save(2, training.be(2))
                    manager.wait()
                except OSError as caught:
                    error = caught
            if len(seen) <= point:
                self.assertIsNone(error)
                break
            there = sorted(one.name for one in self.run1.glob("step-*"))
            if error is not None:
                failed += 1
                self.assertRegex(str(error), rf"{self.run1}.*: No space left on device$")
                self.assertEqual(error.errno, 28)
            else:
                self.assertTrue(is_done, (point, seen[point]))
                self.assertEqual(loaded(self.run1), (2, []))
            self.assertEqual(len(there), 2 * len([one for one in there if "json" in one]),
                             (point, there))
            self.assertIn(loaded(self.run1)[0], (1, 2))
            manager.save(3, training.be(3))  # the next save works
            manager.wait()
            self.assertEqual(loaded(self.run1), (3, []))
            for step in (3, 2):
                for file in self.run1.glob(f"step-{step:012}*"):
                    file.unlink()
            point += 1
        self.assertGreater(failed, 5)

    def test_a_disk_that_is_full_is_an_error_of_the_next_call(self):
        def part():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            manager = save(self.run1, 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            training = Training()
            manager.save(2, training.be(2))
            try:
                manager.save(3, training.be(3))
            except OSError as error:
                assert "write " in str(error) and "File too large" in str(error), error
            else:
                raise AssertionError("it was saved")

        self.assertEqual(in_child(part), 0)
        self.assertEqual(loaded(self.run1), (1, []))
        self.assertEqual(len(list(self.run1.glob("step-*"))), 2)

    def test_a_directory_that_cannot_be_written_is_an_error_at_once(self):
        (self.folder / "file").write_text("")
        for place in (self.folder / "file", self.folder / "file/run1", pathlib.Path("/proc/run1")):
            with self.assertRaisesRegex(OSError, f"directory {place}|directory /proc"):
                checkpoint.CheckpointManager(place)
        for options, pattern in ((dict(keep_last=0), "invalid value 0 of keep_last"),
                                 (dict(keep_best=-1), "invalid value -1 of keep_best")):
            with self.assertRaisesRegex(ValueError, pattern):
                checkpoint.CheckpointManager(self.run1, **options)
        with self.assertRaisesRegex(ValueError, "the directory is ''"):
            checkpoint.CheckpointManager("")

    def test_a_failure_that_no_call_has_reported_is_a_warning_at_the_end(self):
        script = self.script("""
            import gc, os, torch
            from ddprun import checkpoint

            def full(descriptor):
                raise OSError(28, "No space left on device")

            def train():
                manager = checkpoint.CheckpointManager("run1")
                os.fsync = full
                manager.save(1, checkpoint.TrainingState(torch.nn.Linear(30, 30)))
                return manager._writer

            train().join()
            gc.collect()
        """)
        output = frame.run([sys.executable, script], cwd=self.folder,
                           env=frame.environment(PYTHONWARNINGS="default"))
        self.assertRegex(output, "RuntimeWarning: the last save has failed: .*No space left")


class Commands(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1, self.store = self.folder / "run1", self.folder / "store"
        self.store.mkdir()
        self.fetch = f'cp {self.store}/* "$DDPRUN_CHECKPOINT_DIRECTORY"'

    def await_end(self, manager):
        deadline = time.monotonic() + frame.PATIENCE
        while manager._copies._is_running:
            self.assertLess(time.monotonic(), deadline)

    def test_checkpoints_are_copied_and_fetched_into_an_empty_directory(self):
        copy = (f'cp "$DDPRUN_CHECKPOINT_DIRECTORY/$DDPRUN_CHECKPOINT_NAME"* {self.store}; '
                f'echo $DDPRUN_CHECKPOINT_STEP >> {self.folder}/steps; '
                f'until [ -e {self.folder}/go ]; do sleep 0.01; done')
        manager = checkpoint.CheckpointManager(self.run1, copy_command=copy, fetch_command="true")
        for step in (1, 2, 3):
            manager.save(step, Training(step).state)
            if step == 1:
                manager.wait()
                deadline = time.monotonic() + frame.PATIENCE
                while not (self.folder / "steps").exists():
                    self.assertLess(time.monotonic(), deadline)
        manager.wait()
        (self.folder / "go").touch()
        self.await_end(manager)
        self.assertEqual((self.folder / "steps").read_text(), "1\n3\n")  # the newest that waited
        self.assertEqual(len(list(self.store.iterdir())), 4)
        save(self.folder / "other", 4, fetch_command=self.fetch)
        self.assertEqual(loaded(self.folder / "other", step=3), (3, []))
        save(self.folder / "other", 5, fetch_command="false")  # it has a checkpoint
        with self.assertRaisesRegex(OSError, "run the command 'exit 3': exit code 3"):
            save(self.folder / "third", 1, fetch_command="exit 3")

    def test_a_fetch_that_was_cut_off_is_repeated(self):
        save(self.folder / "first", 7)
        for name in (self.folder / "first").glob("step-*"):
            shutil.copy(name, self.store)
        with self.assertRaisesRegex(OSError, "signal 9"):
            checkpoint.CheckpointManager(
                self.run1, fetch_command=f'cp {self.store}/*.json '
                                         '"$DDPRUN_CHECKPOINT_DIRECTORY"; kill -9 $$')
        checkpoint.CheckpointManager(self.run1, fetch_command=self.fetch)
        self.assertEqual(loaded(self.run1, step=7), (7, []))
        checkpoint.CheckpointManager(self.run1, fetch_command="false")  # it is fetched

    def test_a_fetch_that_hangs_is_ended(self):
        with self.assertRaisesRegex(OSError, "had not ended in time"):
            checkpoint.CheckpointManager(self.run1, fetch_command="exec sleep 1000",
                                         fetch_timeout=0)

    def test_copies_go_on_after_an_error_of_python(self):
        manager = checkpoint.CheckpointManager(self.run1, copy_command=f"touch {self.store}/done")
        with unittest.mock.patch.object(_commands, "run_command", side_effect=ValueError("x")):
            with unittest.mock.patch.object(threading, "excepthook"):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    manager.save(1, Training(1).state)
                    manager.wait()
                    self.await_end(manager)
        manager.save(2, Training(2).state)
        manager.wait()
        self.await_end(manager)
        self.assertTrue((self.store / "done").exists())

    def test_a_copy_that_fails_is_a_warning_and_a_slow_one_is_ended_with_the_program(self):
        for command, said in (("exit 4", "exit code 4"), ("sleep 1000", "had not ended in time")):
            script = self.script(f"""
                import torch
                from ddprun import checkpoint
                manager = checkpoint.CheckpointManager("run1", copy_command="{command}",
                                                       copy_timeout=0.1)
                manager.save(1, checkpoint.TrainingState(torch.nn.Linear(3, 3)))
                manager.wait()
            """)
            output = frame.run([sys.executable, script], cwd=self.folder,
                               env=frame.environment(PYTHONWARNINGS="default"))
            self.assertRegex(output, f"RuntimeWarning: run the command '{command}': .*{said}")
            shutil.rmtree(self.run1)

    def test_it_saves_when_it_is_time(self):
        manager = checkpoint.CheckpointManager(self.run1, every=1000)
        self.assertFalse(manager.maybe_save(1, Training().state).saved)
        manager._last_save -= 1000
        self.assertTrue(manager.maybe_save(2, Training().state).saved)
        self.assertFalse(manager.maybe_save(3, Training().state).saved)
        manager.wait()


class Owners(frame.Test):
    def setUp(self):
        super().setUp()
        self.run1 = self.folder / "run1"

    def manager(self, owner, **variables):
        with unittest.mock.patch.object(checkpoint, "_OWNER", owner):
            with unittest.mock.patch.dict(os.environ, {
                    "RANK": "0", "WORLD_SIZE": "1", **variables}):
                return checkpoint.CheckpointManager(self.run1, asynchronous=False)

    def test_a_run_that_has_lost_the_directory_announces_nothing(self):
        old, training = self.manager("one", DDPRUN_GENERATION="0"), Training()
        old.save(1, training.be(1))
        self.manager("two", DDPRUN_GENERATION="1")
        before = sorted(self.run1.iterdir())
        with self.assertRaisesRegex(
                checkpoint.DirectoryTakenError,
                r"a later run \(generation 1\) has taken .*run1 from this one \(generation 0\)"):
            old.save(2, training.be(2))
        self.assertEqual([one for one in sorted(self.run1.iterdir()) if one not in before
                          and one.suffix != ".tmp"], [])
        self.assertEqual(loaded(self.run1), (1, []))

    def test_a_late_manifest_of_a_run_that_has_lost_it_does_not_count(self):
        save(self.run1, 1)
        late = save(self.run1, 2)
        names = ("step-000000000002.json", "step-000000000002.pt")
        files = {name: (self.run1 / name).read_bytes() for name in names}
        for name in names:
            (self.run1 / name).unlink()
        del late
        with unittest.mock.patch.object(checkpoint, "_OWNER", "later"):
            manager = checkpoint.CheckpointManager(self.run1)
        for name, content in files.items():
            (self.run1 / name).write_bytes(content)
        step, lines = loaded(self.run1)
        self.assertEqual(step, 1)
        self.assertRegex(lines[0], "announced it after a later run .* had taken the directory")
        training = Training()
        manager.restore(training.state)
        manager.save(2, training.be(2))
        manager.wait()
        self.assertEqual(loaded(self.run1), (2, []))

    def test_two_jobs_do_not_take_the_directory_from_each_other(self):
        first = self.manager("one", TORCHELASTIC_RUN_ID="a", DDPRUN_GENERATION="0")
        self.manager("two", TORCHELASTIC_RUN_ID="b", DDPRUN_GENERATION="0")
        pattern = "^job 'b' has taken .*ddprun does not restart this job, because a restart would"
        with self.assertRaisesRegex(checkpoint.DirectoryTakenError, pattern):
            first.save(1, Training().state)
        with self.assertRaisesRegex(checkpoint.DirectoryTakenError, pattern):
            self.manager("three", TORCHELASTIC_RUN_ID="a", DDPRUN_GENERATION="1")

    def test_escape_sequences_of_its_files_do_not_reach_the_terminal(self):
        first = self.manager("one", TORCHELASTIC_RUN_ID="a", DDPRUN_GENERATION="0")
        self.manager("two", TORCHELASTIC_RUN_ID="b\x1b[2J\x9b1A\x7f", DDPRUN_GENERATION="0")
        with self.assertRaises(checkpoint.DirectoryTakenError) as caught:
            first.save(1, Training().state)
        self.assertRegex(str(caught.exception), r"^job 'b\?\[2J\?1A\?' has taken ")
        self.assertTrue(str(caught.exception).isprintable())


class Ranks(frame.Test):
    def test_the_store_of_another_launcher_is_not_used(self):
        """torchrun keeps its store over restarts, with the answers of the last generation."""
        with unittest.mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "2",
                                                   "TORCHELASTIC_USE_AGENT_STORE": "True"}):
            with self.assertRaisesRegex(RuntimeError, "init_process_group first"):
                checkpoint.CheckpointManager(self.folder / "run1")

    def test_objects_go_through_the_gpu_of_the_rank(self):
        ranks = _checkpoint.ranks._RanksOfGroup.__new__(_checkpoint.ranks._RanksOfGroup)
        used = unittest.mock.MagicMock()
        with unittest.mock.patch.object(_checkpoint.ranks, "device_of_group",
                                        return_value="cuda:2"), \
                unittest.mock.patch.object(torch.cuda, "device", used):
            with ranks._exchange():
                pass
        used.assert_called_once_with("cuda:2")


RANKS = """
    import atexit, os, sys, torch, ddprun
    from ddprun import checkpoint

    @atexit.register
    def destroy():
        # Without it, a thread of gloo may abort a program that ends right after a collective.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    {setup}
    here = ddprun.Environment.current()
    net = torch.nn.Linear(2, 2)
    torch.manual_seed(here.rank)
    sampler = checkpoint.DistributedSampler(range(100), here.world_size, here.rank)
    state = checkpoint.TrainingState(net, sampler=sampler)
    manager = checkpoint.CheckpointManager("run1", every_steps=10)
    restored = manager.restore(state)
    step = restored.step
    print(f"rank {{here.rank}} at {{step}} with {{torch.rand(1).item():.6f}}", flush=True)
    {body}
"""


class SeveralRanks(frame.Test):
    STORE = ""
    GLOO = "import torch.distributed as dist; dist.init_process_group('gloo')"

    def run_ranks(self, setup, body, code=0, *options, **env):
        return self.job(["--nproc-per-node=2", "--rdzv-id=ranks", *options,
                         self.script(RANKS.format(setup=setup, body=body))], **env).end(code)

    def test_all_ranks_save_and_restore_alike_through_the_store_and_a_group(self):
        body = """
    import torch.distributed as dist
    for place in ("run1", "run2"):
        manager = checkpoint.CheckpointManager(place)
        restored = manager.restore(state)
        print(place, restored.step, f"{torch.rand(1).item():.6f}", net.weight.unique().tolist())
        with torch.no_grad():
            net.weight.fill_(here.rank + 1)
        for step in range(restored.step + 1, restored.step + 4):
            manager.save(step, state)
        manager.wait()
        print("then", place, restored.step + 3, f"{torch.rand(1).item():.6f}", flush=True)
        if place == "run1":
            dist.init_process_group("gloo")
    """
        first, second = self.run_ranks(self.STORE, body), self.run_ranks(self.STORE, body)
        for place in ("run1", "run2"):
            for rank in range(2):
                # Each rank has its own random numbers, and rank 0's weights.
                number = re.search(rf"\[rank {rank}\] then {place} 3 (\S+)", first)[1]
                self.assertIn(f"[rank {rank}] {place} 3 {number} [1.0]\n", second)

    def test_ranks_that_are_apart_are_told_so_on_each_rank(self):
        said = self.run_ranks(self.STORE, """
    try:
        manager.save(5 + here.rank, state)
    except ValueError as error:
        print("told:", error, flush=True)
    try:
        state.extra = object() if here.rank == 0 else None
        manager.save(5, state)
    except TypeError as error:
        print("told:", error, flush=True)
    """)
        self.assertEqual(said.count("told: save a checkpoint: rank 1 is at step 6, rank 0 5: "), 2)
        self.assertEqual(said.count("told: save a checkpoint: extra is a object, only None"), 2)

    def test_directories_that_are_not_shared_are_an_error(self):
        save(self.folder / "run1", 1)
        (self.folder / "other").mkdir()
        said = self.run_ranks("""
    if os.environ["RANK"] == "1": os.chdir("other")
    """, "", 1)
        self.assertRegex(said, "CheckpointError: restore a checkpoint: the ranks have no "
                               "checkpoint in common: rank 0 can read run1/step-0+1.pt, rank 1 has")

    def test_a_request_of_the_launcher_saves_and_leaves(self):
        job = self.job(["--nproc-per-node=2", "--checkpoint-signal=USR1", self.script(RANKS.format(
            setup=self.GLOO, body="""
    import itertools
    for step in itertools.count(step + 1):
        if manager.maybe_save(step, state).leave:
            print("left at", step, flush=True)
            sys.exit(0)
        if step == 12:
            print("training", flush=True)
    """))])
        job.read_until("training$", 2)
        os.kill(job.process.pid, signal.SIGUSR1)
        said = job.end(75)
        steps = {int(line.split()[-1]) for line in said.splitlines() if "left at" in line}
        self.assertEqual(len(steps), 1, said)
        self.assertEqual(checkpoint.load(self.folder / "run1")["step"], steps.pop())


if __name__ == "__main__":
    frame.main()
