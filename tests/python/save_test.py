"""Tests requests to save, and announcements, of Python programs under ddprun."""
import os
import re
import signal
import sys
import types
import unittest.mock

import frame
import needs

from ddprun import _save

needs.module("torch")
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
    import datetime
    import torch.distributed as dist
    dist.init_process_group("gloo")
    groups = [dist.new_group([0]), dist.new_group([1])]
        """, end="""
    print("alone:", ddprun.save_requested(groups[rank]))
    dist.barrier()
    ddprun.announce_checkpoint(40)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                          timeout=datetime.timedelta(seconds=60))
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
            import ddprun, signal, time
            print("loading", flush=True)
            while signal.SIGUSR1 not in signal.sigpending():
                time.sleep(0.01)
            print(ddprun.save_requested())
        """)
        job = self.job(["--checkpoint-signal=USR1", script])
        job.read_until("loading$")
        os.kill(job.process.pid, signal.SIGUSR1)
        self.assertIn("True\n", job.end(75))

    def test_a_signal_that_comes_while_python_ends_is_ignored(self):
        """Other nodes may be asked later than the first, when all ranks have saved already."""
        script = self.script("""
            import ddprun, os
            class Last:
                def __del__(self, kill=os.kill, write=os.write, pid=os.getpid()):
                    kill(pid, 10)
                    write(1, b"still here\\n")
            last = Last()
            while not ddprun.save_requested():
                os.kill(os.getpid(), 10)
        """)
        self.assertIn("still here\n", self.job(["--checkpoint-signal=USR1", script]).end())

    def test_a_request_comes_while_the_main_thread_waits_for_another_one(self):
        """With SA_RESTART the wait would go on without the handler, however often it is asked.
        One signal may come just before the wait begins, and does not end it.
        """
        script = self.script("""
            import ddprun, os, threading
            def train():
                asked = 0
                while not ddprun.save_requested():
                    asked += 1
                    if asked % 1000 == 0:
                        os.kill(os.getpid(), 10)
            ddprun.listen_for_save_requests()
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
            print("joined")
        """)
        self.assertIn("joined\n", self.job(["--checkpoint-signal=USR1", script]).end())

    def test_children_of_a_worker_are_not_asked(self):
        script = self.script("""
            import ddprun, multiprocessing, os, sys
            def ask():
                ddprun.listen_for_save_requests()
                sys.exit(0 if ddprun.save_requested() is False else 1)
            if __name__ == "__main__":
                ddprun.listen_for_save_requests()
                os.kill(os.getpid(), 10)
                for method in ("fork", "spawn"):
                    child = multiprocessing.get_context(method).Process(target=ask)
                    child.start()
                    child.join()
                    print(method, child.exitcode, ddprun.save_requested())
        """)
        self.assertIn("fork 0 True\nspawn 0 True\n",
                      self.job(["--checkpoint-signal=USR1", script]).end())

    def test_the_device_of_a_group_without_the_cpu_is_that_of_the_rank(self):
        """Checked with a double of torch.cuda: its current device is 0 until set_device."""
        def device(current, bound=None):
            return _save.own_cuda_device(types.SimpleNamespace(
                current_device=lambda: current, device_count=lambda: 4), bound)
        here = _save.Environment(local_rank=6)
        with unittest.mock.patch.object(_save, "of_ddprun", return_value=here):
            self.assertEqual((device(0), device(3), device(0, "cuda:1")),
                             ("cuda:2", "cuda:3", "cuda:1"))

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
                         r"listen for save requests: Python handles signals on its main thread "
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

    def test_a_store_that_cannot_be_reached_is_named(self):
        for agent_store, hint in (("True", ""), ("False", r" \(with --worker-store=rank0 .*\)")):
            said = frame.run([sys.executable, "-c", "import ddprun; ddprun.save_requested()"],
                             code=1, env=frame.environment(
                                 RANK="1", WORLD_SIZE="2", DDPRUN_GENERATION="0",
                                 MASTER_ADDR="127.0.0.1", MASTER_PORT="1",
                                 DDPRUN_CHECKPOINT_SIGNAL="10",
                                 TORCHELASTIC_USE_AGENT_STORE=agent_store))
            self.assertRegex(said, r"ConnectionError: save_requested: rank 1 could not ask the "
                             r"other ranks: connect to the store at 127.0.0.1:1: \[Errno 111\] "
                             rf"Connection refused{hint}\n$")


class Announcement(frame.Test):
    def test_a_failure_is_a_warning(self):
        said = frame.run([sys.executable, "-c", "import ddprun; ddprun.announce_checkpoint(40)"],
                         env=frame.environment(
                             RANK="0", WORLD_SIZE="1", DDPRUN_GENERATION="0", MASTER_PORT="1",
                             TORCHELASTIC_USE_AGENT_STORE="True", PYTHONWARNINGS="always"))
        self.assertIn("RuntimeWarning: announce the checkpoint of step 40: connect to the store at "
                      "127.0.0.1:1: [Errno 111]", said)


frame.main()
