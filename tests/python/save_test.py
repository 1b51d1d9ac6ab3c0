"""Tests requests to save, and announcements, of Python programs under ddprun."""
import os
import re
import signal
import sys

import frame

# Asks until a save is requested.
LOOP = """
    import os, sys, ddprun
    {setup}
    rank, step = ddprun.Environment.current().rank, 0
    while not ddprun.save_requested():
        step += 1
        if step == 20:
            print("training", flush=True)
    print(f"saved at step {{step}}", flush=True)
    {end}
"""


class SaveRequested(frame.Test):
    def training(self, setup="", end=""):
        job = self.job(["--nproc-per-node=2", "--checkpoint-signal=USR1",
                        self.script(LOOP.format(setup=setup, end=end))])
        job.read_until("training$", 2)
        return job

    def check_saved_alike(self, output):
        """Both ranks have saved at the same step."""
        steps = re.findall(r"saved at step (\d+)$", output, re.MULTILINE)
        self.assertEqual(len(steps), 2, output)
        self.assertEqual(len(set(steps)), 1, output)

    def test_without_pytorch_all_ranks_learn_of_it_through_the_store(self):
        job = self.training(end="assert 'torch' not in sys.modules")
        os.kill(job.process.pid, signal.SIGUSR1)
        self.check_saved_alike(job.end(75))

    def test_one_rank_that_was_asked_tells_the_others(self):
        job = self.training()
        frame.run([frame.DDPRUN, "signal", "USR1", "--rank", "1", str(job.process.pid)])
        self.check_saved_alike(job.end())

    def test_with_pytorch_the_ranks_of_a_group_learn_of_it(self):
        """By default those of the default group. Rank 1 alone was asked."""
        job = self.training(setup="""
    import torch.distributed as dist
    dist.init_process_group("gloo")
    groups = [dist.new_group([0]), dist.new_group([1])]
        """, end="""
    print("alone:", ddprun.save_requested(groups[rank]))
    dist.barrier()
    ddprun.announce_checkpoint(40)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    print("store:", store.get("ddprun/checkpoint"))
    dist.destroy_process_group()
        """)
        frame.run([frame.DDPRUN, "signal", "USR1", "--rank", "1", str(job.process.pid)])
        said = job.end()
        self.check_saved_alike(said)
        for rank, alone in enumerate(("False", "True")):
            self.assertIn(f"[rank {rank}] alone: {alone}\n", said)
            self.assertIn(f"[rank {rank}] store: b'40'\n", said)

    def test_a_signal_that_came_before_the_first_call_counts(self):
        script = self.script("""
            import ddprun
            print("loading", flush=True)
            open("go").read()
            print(ddprun.save_requested())
        """)
        os.mkfifo(self.folder / "go")
        job = self.job(["--checkpoint-signal=USR1", script])
        job.read_until("loading$")
        os.kill(job.process.pid, signal.SIGUSR1)
        job.read_until("asking|asked|save")  # ddprun has passed it on
        (self.folder / "go").write_text("")
        self.assertIn("True\n", job.end(75))

    def test_without_a_signal_nobody_is_asked(self):
        script = self.script("""
            import ddprun, signal
            assert not ddprun.save_requested()
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        """)
        self.job(["--nproc-per-node=2", script]).end()
        frame.run([sys.executable, script])

    def test_the_first_call_must_be_on_the_main_thread(self):
        script = self.script("""
            import ddprun, threading
            def ask():
                try:
                    print("answer", ddprun.save_requested())
                except RuntimeError as error:
                    print(error)
            for _ in range(2):
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
                ddprun.listen_for_save_requests()
        """)
        self.assertRegex(self.job(["--checkpoint-signal=USR1", script]).end(),
                         r"^listen for save requests: Python handles signals on its main thread "
                         r"only \(call .*\)\nanswer False\n$")

    def test_a_rank_that_does_not_ask_is_an_error_at_the_deadline(self):
        script = self.script("""
            import ddprun
            if ddprun.Environment.current().rank == 0:
                try:
                    ddprun.save_requested()
                except TimeoutError as error:
                    print(error)
        """)
        said = self.job(["--nproc-per-node=2", "--checkpoint-signal=USR1",
                         "--env=DDPRUN_TIMEOUT=0.3", script]).end()
        self.assertRegex(said, r"\[rank 0\] save_requested: rank 0 waited for call 1 of all 2 "
                         r"ranks: the store at \S+ did not answer within 0.3 s \(")


class Announcement(frame.Test):
    def test_a_failure_is_a_warning(self):
        said = frame.run([sys.executable, "-c", "import ddprun; ddprun.announce_checkpoint(40)"],
                         env=frame.environment(
                             RANK="0", WORLD_SIZE="1", DDPRUN_GENERATION="0", MASTER_PORT="1",
                             TORCHELASTIC_USE_AGENT_STORE="True", PYTHONWARNINGS="always"))
        self.assertIn("RuntimeWarning: announce the checkpoint of step 40: [Errno 111]", said)


frame.main()
