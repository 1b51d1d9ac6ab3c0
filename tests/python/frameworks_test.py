"""Tests the callbacks with the real Lightning and transformers, launch with cloudpickle, and
`ddprun stacks` with py-spy. The backend "ddprun" runs programs by others, and each gives the same
results as with gloo.

argv[2]: a folder for a virtual environment, which is kept. It has the frameworks from the package
index, and the PyTorch of this python.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import venv

import frame

PACKAGES = ["lightning>=2", "pytorch_lightning>=2", "transformers", "accelerate", "cloudpickle",
            "torchdata", "py-spy"]
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

# Forms the group before the program does. arguments: a script by others, and its own.
WITH_BACKEND = """
    import os, runpy, sys, warnings
    warnings.simplefilter("ignore")
    import torch.distributed as dist
    import ddprun
    dist.init_process_group(os.environ["BACKEND"])
    import accelerate
    accelerate.PartialState(cpu=True)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAINER = """
    import os, hashlib, warnings
    warnings.simplefilter("ignore")
    import torch, transformers
    import torch.distributed as dist
    import ddprun

    dist.init_process_group(os.environ["BACKEND"])
    torch.manual_seed(1)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    rows = torch.randint(32, (64, 16))
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = transformers.Trainer(
        net, transformers.TrainingArguments(
            "run", use_cpu=True, max_steps=10, per_device_train_batch_size=4, report_to=[],
            disable_tqdm=True, logging_strategy="no", save_strategy="no"),
        train_dataset=data, eval_dataset=data)
    trainer.log = lambda *figures: None  # they have times
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
    print(dist.get_world_size(), "ranks, loss", loss, digest.hexdigest(), flush=True)
"""
FABRIC = """
    import hashlib, os, warnings
    warnings.simplefilter("ignore")
    import torch
    import ddprun
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    backend = os.environ["BACKEND"]
    fabric = Fabric(accelerator="cpu", devices=2,
                    strategy=DDPStrategy(process_group_backend=backend))
    fabric.launch()
    assert torch.distributed.get_backend() == backend
    fabric.seed_everything(1, verbose=False)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
    data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
    for index, batch in enumerate(fabric.setup_dataloaders(data)):
        with fabric.no_backward_sync(net, enabled=index % 2 == 0):
            fabric.backward(net(batch).square().mean())
        if index % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    here = torch.tensor([fabric.global_rank + 1.0])
    rows = fabric.all_gather(here).tolist()
    state = {"net": net, "optimizer": optimizer}
    fabric.save("fabric.ckpt", state)
    fabric.load("fabric.ckpt", state)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
    print(fabric.all_reduce(here).item(), rows,
          fabric.broadcast({"from": fabric.global_rank}, src=1), digest.hexdigest(), flush=True)
"""
STATEFUL = """
    import os
    import torch
    import torch.distributed as dist
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
    import ddprun

    dist.init_process_group(os.environ["BACKEND"])
    def loader():
        data = list(range(64))
        return StatefulDataLoader(data, batch_size=4, num_workers=1,
                                  sampler=StatefulDistributedSampler(data, seed=3))
    def from_all(value):
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, value)
        return every

    whole = from_all([batch.tolist() for batch in loader()])
    first = loader()
    begun = iter(first)
    before = [next(begun) for _ in range(3)]
    second = loader()
    second.load_state_dict(from_all(first.state_dict())[dist.get_rank()])
    after = list(second)
    assert from_all([batch.tolist() for batch in before + after]) == whole
    total = torch.stack(after).sum()
    dist.all_reduce(total)
    print(f"went on after 3 of {len(before + after)} batches, sum {total}", flush=True)
    dist.destroy_process_group()
"""


class Backend(frame.Test):
    def same_with_both(self, text: str, *arguments: str) -> str:
        """Runs the program on two ranks with gloo and with ddprun. Returns what both print."""
        command = ["--nproc-per-node=2", "--log-dir=log", "--redirects=2", self.script(text),
                   *arguments]  # warnings on stderr have times
        library = str(frame.BIN.parent / "lib/libddprun_cpu.so")
        said = [sorted(self.job(command, PYTHON_EXEC=PYTHON, BACKEND=backend,
                                ACCELERATE_USE_CPU="true", DDPRUN_CPU_LIBRARY=library)
                       .end().splitlines()) for backend in ("gloo", "ddprun")]
        self.assertEqual(*said)
        return "\n".join(said[0])

    # Of accelerate's other scripts, test_ddp_comm_hook.py is for GPUs only, and
    # test_distributed_data_loop.py hangs on CPUs with gloo.
    def run_script(self, name: str, end: str) -> None:
        [script] = environment.glob(
            f"lib/python3*/site-packages/accelerate/test_utils/scripts/{name}.py")
        self.assertIn(end, self.same_with_both(WITH_BACKEND, str(script)))

    def test_the_operations_of_accelerate(self):
        self.run_script("test_ops", "testing op_checker")

    def test_the_script_of_accelerate(self):
        self.run_script("test_script", "**Breakpoint trigger test**")

    def test_accelerate_gathers_gradients_without_synchronization(self):
        self.run_script("test_sync", "**Test Distributed `no_sync` context manager**")

    def test_the_trainer_of_transformers(self):
        said = self.same_with_both(TRAINER)
        self.assertEqual(len(re.findall(r"2 ranks, loss \d\.\d+ [0-9a-f]{64}", said)), 2, said)

    def test_lightning_fabric(self):
        said = self.same_with_both(FABRIC)
        self.assertEqual(said.count("1.5 [[1.0], [2.0]] {'from': 1} "), 2, said)

    def test_the_stateful_data_loader_of_torchdata(self):
        said = self.same_with_both(STATEFUL)
        self.assertEqual(said.count("went on after 3 of 8 batches, sum "), 2, said)


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

    def test_stacks_shows_the_functions_of_python_and_their_native_calls(self):
        script = self.script("""
            import os, signal
            def read_batch():
                print("waits", flush=True)
                signal.sigwait([signal.SIGUSR2])
            def save():
                read_batch()
            def train(rank):
                save() if rank == 1 else read_batch()
            train(int(os.environ["RANK"]))
        """)
        job = self.job(["--nproc-per-node=3", script], PYTHON_EXEC=PYTHON,
                       PATH=f"{environment / 'bin'}:{os.environ['PATH']}")
        job.read_until(r"waits$", 3)
        said = frame.run([frame.DDPRUN, "stacks", str(job.process.pid)])
        native = r"    \S*sigwait\S* .*\n"
        self.assertRegex(said, r"^ranks 0,2: .*\n(?:    .*\n)*"
                         r"    train \(.*train\.py:9\)\n    read_batch \(.*train\.py:5\)\n"
                         rf"(?:    .*\n)*{native}")
        self.assertRegex(said, r"\nrank 1: .*\n(?:    .*\n)*    save \(.*train\.py:7\)\n"
                         rf"    read_batch \(.*train\.py:5\)\n(?:    .*\n)*{native}")


environment = pathlib.Path(sys.argv.pop(1))
PYTHON = str(environment / "bin/python")
complete = environment / "complete"  # has the packages
if not complete.exists() or complete.read_text() != " ".join(PACKAGES):
    venv.create(environment, with_pip=True, clear=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    torch_is_in = next(path for path in sys.path if (pathlib.Path(path) / "torch").is_dir())
    (packages / "torch.pth").write_text(torch_is_in)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    complete.write_text(" ".join(PACKAGES))
frame.main()
