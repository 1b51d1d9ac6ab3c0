"""Tests the callbacks with the real Lightning and transformers, and launch with cloudpickle.

argv[2]: a folder for a virtual environment, which is kept. It has the frameworks from the package
index, and the PyTorch of this python.
"""
import pathlib
import signal
import subprocess
import sys
import venv

import frame

PACKAGES = ["lightning>=2", "pytorch_lightning>=2", "transformers", "accelerate", "cloudpickle"]
LIGHTNING = """
    import importlib, logging, os, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    name = sys.argv[1]
    pl = importlib.import_module(name)
    logging.getLogger(name).setLevel(logging.ERROR)
    import ddprun.lightning

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
        def training_step(self, batch, index):
            return self.layer(batch).square().mean()
        def validation_step(self, batch, index):
            pass
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Print(pl.Callback):
        def on_train_batch_end(self, trainer, *more):
            if trainer.global_step in (1, 20) or trainer.global_step == first + 1:
                print(f"at step {trainer.global_step}", flush=True)

    class Logger(pl.loggers.logger.DummyLogger):
        def finalize(self, status):
            print("the logger is told:", status, flush=True)

    torch.manual_seed(1)
    last = "run1/last-ddprun.ckpt"
    first = torch.load(last, weights_only=False)["global_step"] if os.path.exists(last) else 0
    trainer = pl.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_steps=first + 5 if first else -1,
        logger=Logger(), enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Print(), ddprun.lightning.ProgressCallback(),
                   pl.callbacks.ModelCheckpoint(dirpath="run1")])
    data = torch.utils.data.DataLoader(torch.randn(4096, 8), batch_size=4)
    trainer.fit(Net(), data, ckpt_path="last" if first else None)
    print(f"ended from {first} at {trainer.global_step}", flush=True)
"""
TRANSFORMERS = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import torch, transformers
    from transformers.trainer_utils import get_last_checkpoint
    import ddprun.transformers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
        def forward(self, x, labels=None):
            out = self.layer(x)
            return {"loss": (out - labels).square().mean(), "logits": out}

    class Print(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            if state.global_step in (1, 20) or state.global_step == first + 1:
                print(f"at step {state.global_step}", flush=True)

    ages = iter(range(1, 1000000))
    torch.manual_seed(1)
    last = get_last_checkpoint("run1") if os.path.isdir("run1") else None
    first = int(last.rpartition("-")[2]) if last else 0
    data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(512)]
    trainer = transformers.Trainer(
        Net(), transformers.TrainingArguments(
            "run1", use_cpu=True, max_steps=first + 5 if first else 100000, report_to=[],
            disable_tqdm=True, ddp_backend="gloo", logging_strategy="no",
            # Only the first step is the best one: the Trainer would save no other one, and would
            # delete it at the end.
            save_strategy="best", eval_strategy="steps", eval_steps=1, save_total_limit=1,
            metric_for_best_model="age", greater_is_better=False),
        train_dataset=data, eval_dataset=data[:2], compute_metrics=lambda _: {"age": next(ages)},
        callbacks=[ddprun.transformers.ProgressCallback(), Print()])
    trainer.train(resume_from_checkpoint=last)
    print(f"ended from {first} at {trainer.state.global_step}", flush=True)
"""


class Frameworks(frame.Test):
    def run_twice(self, text: str, *arguments: str) -> None:
        """The first run is asked to save on one node. The second one continues."""
        command = ["--nproc-per-node=2", "--checkpoint-signal=USR1", self.script(text), *arguments]
        job = self.job(command, PYTHON_EXEC=PYTHON)
        job.read_until(r"at step 20$", 2)
        status = frame.run([frame.DDPRUN, "status", "--json", str(job.process.pid)])
        self.assertRegex(status, r'"step":\d+')
        job.signal(signal.SIGUSR1)
        said = job.end(75)
        self.assertNotIn("ended from", said)
        self.assertNotIn("told: failed", said)
        said = self.job(command, PYTHON_EXEC=PYTHON).end()
        self.assertEqual(said.count("ended from"), 2, said)
        first, last = map(int, said.rpartition("ended from ")[2].split(" at "))
        self.assertGreaterEqual(first, 20)
        self.assertEqual(last, first + 5)
        self.assertEqual(said.count(f"at step {first + 1}\n"), 2, said)
        self.assertNotIn("at step 1\n", said)

    def test_lightning_saves_leaves_and_continues(self):
        self.run_twice(LIGHTNING, "lightning.pytorch")

    def test_pytorch_lightning_does_so_too(self):
        self.run_twice(LIGHTNING, "pytorch_lightning")

    def test_the_trainer_of_transformers_does_so_too(self):
        self.run_twice(TRANSFORMERS)

    def test_without_a_launcher_the_callback_changes_nothing(self):
        said = frame.run([PYTHON, "-c", """
import torch, lightning.pytorch as pl, ddprun.lightning
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index): return self.layer(batch).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.01)
trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=3, logger=False,
                     enable_checkpointing=False,
                     callbacks=[ddprun.lightning.ProgressCallback(every=2)])
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(64, 8)))
print("ended at", trainer.global_step)
"""], cwd=self.folder)
        self.assertTrue(said.endswith("ended at 3\n"), said)

    def test_functions_of_the_main_script_are_sent_with_cloudpickle(self):
        script = self.script("""
            import ddprun
            factor = 3
            class Odd(Exception): pass
            def rank_times(number):
                return factor * number * ddprun.Environment.current().rank
            print(ddprun.launch(rank_times, 5, nproc_per_node=2))
            def fail(): raise Odd("one")
            try:
                ddprun.launch(fail, quiet=True)
            except Exception as error:
                print(type(error).__name__, error)
            print(ddprun.launch(lambda: lambda: 7, quiet=True)[0]())
        """)
        said = frame.run([PYTHON, "-u", script])
        self.assertTrue(said.startswith("[0, 15]\n"), said)
        self.assertIn("\nOdd one\n", said)
        self.assertTrue(said.endswith("\n7\n"), said)


environment = pathlib.Path(sys.argv.pop(1))
PYTHON = str(environment / "bin/python")
if not (environment / "complete").exists():
    venv.create(environment, with_pip=True, clear=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    torch_is_in = next(path for path in sys.path if (pathlib.Path(path) / "torch").is_dir())
    (packages / "torch.pth").write_text(torch_is_in)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    (environment / "complete").touch()
frame.main()
