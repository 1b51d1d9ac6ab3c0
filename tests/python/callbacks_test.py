"""Tests the callbacks with doubles of Lightning, transformers and torch.distributed, which have
the hooks and nothing else. frameworks_test.py (label long) has the real ones, which CI does not
install."""
import sys
import unittest.mock

import frame

import ddprun
from ddprun import _callback, _save

# A loop of a framework. It signals itself at step 5.
LIGHTNING = """
    import os, signal, sys, types
    import ddprun.lightning
    from ddprun._store import StoreClient
    saved = []
    trainer = types.SimpleNamespace(
        global_step=0, max_steps=70, default_root_dir="root", is_global_zero=True,
        should_stop=False,
        checkpoint_callback=types.SimpleNamespace(dirpath="run1") if {dirpath} else None,
        save_checkpoint=saved.append,
        loggers=[types.SimpleNamespace(finalize=lambda end: print("logged:", end))])
    callback = ddprun.lightning.ProgressCallback({options})
    assert isinstance(callback, sys.modules["{package}.callbacks"].Callback)
    callback.setup(trainer, None, "fit")
    {total}
    callback.on_train_start(trainer, None)
    totals = []
    ddprun.lightning.report_progress = lambda step, total: totals.append(total)
    def fit():
        while not trainer.should_stop:
            trainer.global_step += 1
            for _ in range(2):  # two batches are one step: gradients are accumulated
                if trainer.global_step == 5:
                    os.kill(os.getpid(), signal.SIGUSR1)
                callback.on_train_batch_end(trainer, None, None, None, 0)
            callback.on_validation_batch_end(trainer, None, None, None, 0)
    try:
        try:
            fit()
        except BaseException as exception:  # as Lightning does
            callback.on_exception(trainer, None, exception)
            trainer.loggers[0].finalize("failed")
            raise
    except SystemExit as end:
        print("left with", end.code)
    store = StoreClient(ddprun.Environment.current(), 60)
    assert set(totals) == {{{expected}}}, totals
    print(saved, trainer.global_step, store.wait("ddprun/checkpoint", 60))
"""
# The last rank signals itself at step 5. {after_step} is what another callback does.
TRANSFORMERS = """
    import os, signal, types
    import ddprun.transformers
    from ddprun._store import StoreClient
    {setup}
    here = ddprun.Environment.current()
    control = types.SimpleNamespace(should_save=False, should_evaluate=False,
                                    should_training_stop=False)
    state = types.SimpleNamespace(global_step=0, max_steps=70, is_world_process_zero=here.rank == 0)
    callback = ddprun.transformers.ProgressCallback({options})
    totals = []
    ddprun.transformers.report_progress = lambda step, total: totals.append(total)
    def save_if_told():  # as the Trainer does with save_strategy="best", where this is not the best
        if control.should_evaluate:
            control.should_save = False
        if control.should_save:
            control.should_save = False
            callback.on_save(None, state, control)
    def train():
        callback.on_train_begin(None, state, control)
        while not control.should_training_stop:
            state.global_step += 1
            control.should_evaluate = True
            if state.global_step == 5 and here.rank == here.world_size - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            callback.on_step_end(None, state, control)
            callback.on_prediction_step(None, state, control)
            {after_step}
            save_if_told()
        control.should_evaluate = True
        callback.on_epoch_end(None, state, control)
        {after_epoch}
        save_if_told()
        callback.on_train_end(None, state, control)
    try:
        train()
        print("train returned")
    except SystemExit as end:
        print("left with", end.code)
    store = StoreClient(here, 60)
    assert set(totals) == {{70}}, totals
    print(state.global_step, store.wait("ddprun/checkpoint", 60))
"""
# A torch whose collectives go through the store.
TORCH = """
    int32 = None
    class tensor(list):
        def __init__(self, values, dtype, device):
            super().__init__(values)
        def item(self):
            return self[0]
"""
DISTRIBUTED = """
    import ddprun
    from ddprun._store import StoreClient
    here = ddprun.Environment.current()
    store = StoreClient(here, 60)
    calls = 0
    class ReduceOp:
        MAX = None
    is_available = is_initialized = lambda: True
    get_world_size = lambda group: here.world_size
    get_backend_config = lambda group: "cpu:gloo"
    def all_reduce(one, op, group):
        global calls
        calls += 1
        total = store.add(f"call/{calls}", 1 + (one[0] << 32))
        if total & 0xFFFFFFFF == here.world_size:
            store.set(f"call/{calls}/sum", str(total >> 32))
        one[0] = int(store.wait(f"call/{calls}/sum", 60))
    def barrier():
        store.set(f"in the barrier/{here.rank}", "1")
        all_reduce([0], None, None)
"""
# Rank 1 writes its part of the checkpoint when rank 0 is in the barrier.
SLOW_RANK = """
    import pathlib, torch.distributed
    import ddprun._callback
    part, announce = pathlib.Path("part"), ddprun._callback.announce_checkpoint
    def announce_checkpoint(step):
        print("announced with all parts:", part.exists())
        announce(step)
    ddprun._callback.announce_checkpoint = announce_checkpoint
    class Slow(ddprun.transformers.ProgressCallback):
        def on_save(self, *arguments):
            if here.rank == 1:
                torch.distributed.store.wait("in the barrier/0", 60)
                part.touch()
            super().on_save(*arguments)
    ddprun.transformers.ProgressCallback = Slow
"""


class Callbacks(frame.Test):
    def double(self, name: str, base: str) -> None:
        file = self.folder / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class {base}: pass\n")

    def said_by(self, script: str, *words: str, code: int = 0, **values: object) -> str:
        for name in ("setup", "after_step", "after_epoch"):
            values.setdefault(name, "pass")
        values.setdefault("total", "trainer.estimated_stepping_batches = 90")
        values.setdefault("expected", 90)
        return self.job(["--checkpoint-signal=USR1", *words, self.script(script.format(**values))],
                        PYTHONPATH=f"{frame.SOURCES / 'python'}:{self.folder}").end(code)

    def test_lightning_saves_beside_its_checkpoints_announces_and_leaves(self):
        self.double("lightning.pytorch.callbacks", "Callback")
        self.assertEqual(
            self.said_by(LIGHTNING, package="lightning.pytorch", options="", dirpath=True),
            "logged: success\nleft with 0\n['run1/last-ddprun.ckpt'] 5 5\n")
        self.assertEqual(
            self.said_by(LIGHTNING, package="lightning.pytorch", options="", dirpath=False),
            "logged: success\nleft with 0\n['root/last-ddprun.ckpt'] 5 5\n")

    def test_pytorch_lightning_asks_at_every_nth_step_and_stops_if_told_to(self):
        self.double("pytorch_lightning.callbacks", "Callback")
        self.assertEqual(
            self.said_by(LIGHTNING, package="pytorch_lightning", dirpath=True,
                         options="every=4, path='here.ckpt', leave=False"),
            "['here.ckpt'] 8 8\n")

    def test_lightning_may_not_know_how_many_steps_there_are(self):
        self.double("lightning.pytorch.callbacks", "Callback")
        for total, expected in [("trainer.estimated_stepping_batches = float('inf')", None),
                                ("'Lightning may refuse to estimate'", 70),
                                ("trainer.max_steps = -1", -1)]:
            self.said_by(LIGHTNING, package="lightning.pytorch", options="", dirpath=True,
                         total=total, expected=expected)

    def test_transformers_saves_announces_and_leaves(self):
        self.double("transformers", "TrainerCallback")
        self.assertEqual(self.said_by(TRANSFORMERS, options=""), "left with 0\n5 5\n")
        self.assertEqual(self.said_by(TRANSFORMERS, options="every=3, leave=False"),
                         "train returned\n6 6\n")

    def test_a_save_that_is_prevented_at_the_step_is_made_at_the_end_of_the_epoch(self):
        self.double("transformers", "TrainerCallback")
        self.assertEqual(self.said_by(TRANSFORMERS, options="",
                                      after_step="control.should_save = False"),
                         "left with 0\n5 5\n")

    def test_the_program_does_not_end_with_0_if_there_was_no_save(self):
        self.double("transformers", "TrainerCallback")
        said = self.said_by(TRANSFORMERS, options="", after_step="control.should_save = False",
                            after_epoch="control.should_save = False", code=1)
        self.assertIn("RuntimeError: ProgressCallback: the Trainer saved no checkpoint at step 5, "
                      "although", said)

    def test_rank_0_announces_when_all_ranks_have_saved(self):
        self.double("transformers", "TrainerCallback")
        (self.folder / "torch").mkdir()
        self.script(TORCH, "torch/__init__.py")
        self.script(DISTRIBUTED, "torch/distributed.py")
        said = self.said_by(TRANSFORMERS, "--nproc-per-node=2", options="",
                            setup=SLOW_RANK.strip())
        self.assertEqual(sorted(said.splitlines()), [
            "[rank 0] 5 5", "[rank 0] announced with all parts: True", "[rank 0] left with 0",
            "[rank 1] 5 5", "[rank 1] left with 0"])

    def test_where_nobody_reads_announcements_no_rank_waits(self):
        """An agent_store of False is that of --worker-store=rank0 and of other launchers."""
        here = ddprun.Environment(agent_store=False)
        waits = unittest.mock.MagicMock()
        with unittest.mock.patch.object(_save, "of_ddprun", return_value=here), \
                unittest.mock.patch.dict(sys.modules, {"torch.distributed": waits}):
            _callback.announce_on_rank_0(5, True)
        waits.barrier.assert_not_called()

    def test_lightning_cannot_save_at_sigterm(self):
        self.double("lightning.pytorch.callbacks", "Callback")
        said = self.said_by(LIGHTNING, "--checkpoint-signal=TERM", package="lightning.pytorch",
                            options="", dirpath=True, code=1)
        self.assertIn("ValueError: ProgressCallback: --checkpoint-signal=TERM is not possible with "
                      "Lightning", said)

    def test_without_the_framework_the_error_says_what_to_install(self):
        said = frame.run([sys.executable, "-c",
                          "import ddprun.lightning; ddprun.lightning.ProgressCallback"], code=1)
        self.assertIn("ModuleNotFoundError: ddprun.lightning needs lightning or pytorch_lightning "
                      "(pip install lightning)", said)

    def test_a_bad_interval_is_an_error(self):
        self.double("transformers", "TrainerCallback")
        said = frame.run([sys.executable, "-c", "import ddprun.transformers; "
                          "ddprun.transformers.ProgressCallback(every=0)"], code=1,
                         env=frame.environment(
                             PYTHONPATH=f"{frame.SOURCES / 'python'}:{self.folder}"))
        self.assertIn("ValueError: ProgressCallback: invalid value 0 of every (expected 1 or more)",
                      said)


frame.main()
