"""Tests the callbacks with doubles of Lightning and transformers, which have the hooks and nothing
else. frameworks_test.py (label long) has the real ones, which CI does not install."""
import sys

import frame

# A loop of a framework. It signals itself at step 5.
LIGHTNING = """
    import os, signal, sys, types
    import ddprun.lightning
    from ddprun._store import StoreClient
    saved = []
    trainer = types.SimpleNamespace(
        global_step=0, default_root_dir="root", is_global_zero=True, should_stop=False,
        checkpoint_callback=types.SimpleNamespace(dirpath="run1") if {dirpath} else None,
        save_checkpoint=saved.append)
    callback = ddprun.lightning.ProgressCallback({options})
    assert isinstance(callback, sys.modules["{package}.callbacks"].Callback)
    callback.setup(trainer, None, "fit")
    try:
        while not trainer.should_stop:
            trainer.global_step += 1
            for _ in range(2):  # two batches are one step: gradients are accumulated
                if trainer.global_step == 5:
                    os.kill(os.getpid(), signal.SIGUSR1)
                callback.on_train_batch_end(trainer, None, None, None, 0)
            callback.on_validation_batch_end(trainer, None, None, None, 0)
    except SystemExit as end:
        print("left with", end.code)
    store = StoreClient(ddprun.Environment.current(), 60)
    print(saved, trainer.global_step, store.wait("ddprun/checkpoint", 60))
"""
TRANSFORMERS = """
    import os, signal, types
    import ddprun.transformers
    from ddprun._store import StoreClient
    control = types.SimpleNamespace(should_save=False, should_training_stop=False)
    state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
    callback = ddprun.transformers.ProgressCallback({options})
    callback.on_train_begin(None, state, control)
    while not control.should_training_stop:
        state.global_step += 1
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGUSR1)
        callback.on_step_end(None, state, control)
        callback.on_prediction_step(None, state, control)
        if control.should_save:
            callback.on_save(None, state, control)
    store = StoreClient(ddprun.Environment.current(), 60)
    print(state.global_step, store.wait("ddprun/checkpoint", 60), flush=True)
    callback.on_train_end(None, state, control)
    print("train returned")
"""


class Callbacks(frame.Test):
    def double(self, name: str, base: str) -> None:
        file = self.folder / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class {base}: pass\n")

    def said_by(self, script: str, **values: object) -> str:
        return self.job(["--checkpoint-signal=USR1", self.script(script.format(**values))],
                        PYTHONPATH=f"{frame.SOURCES / 'python'}:{self.folder}").end()

    def test_lightning_saves_beside_its_checkpoints_announces_and_leaves(self):
        self.double("lightning.pytorch.callbacks", "Callback")
        self.assertEqual(
            self.said_by(LIGHTNING, package="lightning.pytorch", options="", dirpath=True),
            "left with 0\n['run1/last-ddprun.ckpt'] 5 5\n")
        self.assertEqual(
            self.said_by(LIGHTNING, package="lightning.pytorch", options="", dirpath=False),
            "left with 0\n['root/last-ddprun.ckpt'] 5 5\n")

    def test_pytorch_lightning_asks_at_every_nth_step_and_stops_if_told_to(self):
        self.double("pytorch_lightning.callbacks", "Callback")
        self.assertEqual(
            self.said_by(LIGHTNING, package="pytorch_lightning", dirpath=True,
                         options="every=4, path='here.ckpt', leave=False"),
            "['here.ckpt'] 8 8\n")

    def test_transformers_saves_announces_and_leaves(self):
        self.double("transformers", "TrainerCallback")
        self.assertEqual(self.said_by(TRANSFORMERS, options=""), "5 5\n")
        self.assertEqual(self.said_by(TRANSFORMERS, options="every=3, leave=False"),
                         "6 6\ntrain returned\n")

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
