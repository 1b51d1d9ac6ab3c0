#!/usr/bin/env python3
"""Runs the manifests of packaging/kubernetes in the small kubelet of kubelet.py: pods are deleted,
nodes are drained, workers are killed. Only ./train of the image is the test's own.

    kubernetes_test.py SOURCE_DIR BIN_DIR [TEST...]

Needs root, iproute2, util-linux and dnsmasq. Exit code 77: skipped, with the reason.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

SOURCE, BIN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()

CAP_SYS_ADMIN = 21


def capabilities():
    text = pathlib.Path("/proc/self/status").read_text("utf-8")
    return int(re.search(r"^CapEff:\s*(\w+)", text, re.MULTILINE).group(1), 16)


if os.geteuid() != 0 or not capabilities() >> CAP_SYS_ADMIN & 1:
    needs.skip("pods are namespaces, which needs root with CAP_SYS_ADMIN")
os.environ["PATH"] += ":/usr/sbin:/sbin"
for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("dnsmasq", "dnsmasq-base")):
    if shutil.which(tool) is None:
        needs.skip(f"{tool} is missing: apt-get install {package}")
needs.module("yaml", ": scripts/setup --tests installs kubernetes-validate, which has it")
# pylint: disable=wrong-import-position
import yaml

import kubelet

SECRETS = {"ddprun-key": {"key": "a-key-of-the-tests-of-more-than-16-characters"}}


def check(what, is_true):
    if not is_true:
        raise AssertionError(what)


class Test:
    """A cluster, and the training that runs in it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-kub-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        image = self.folder / "image"
        image.mkdir()
        worker = SOURCE / "tests/integration/cluster/kubernetes_worker.py"
        shutil.copy(worker, image / "train")
        (image / "train").chmod(0o755)
        self.cluster = kubelet.Cluster(self.folder, image, BIN, SECRETS, ["node-a", "node-b"])
        self.shared = self.cluster.claim("checkpoints")

    def apply(self, name, kinds=None, instead=()):
        """Applies a manifest, or its resources of these kinds. Returns the last controller.

        instead: pairs of a text and what the test puts in its place.
        """
        text = (SOURCE / "packaging/kubernetes" / name).read_text("utf-8")
        for old, new in instead:
            check(f"{name} has {old}", old in text)
            text = text.replace(old, new)
        made = [self.cluster.apply(resource) for resource in yaml.safe_load_all(text)
                if kinds is None or resource["kind"] in kinds]
        return next((controller for controller in reversed(made) if controller), None)

    def until(self, what, condition, seconds=20):
        self.cluster.until(what, condition, seconds)

    def until_log(self, job, pattern, count=1, seconds=20):
        """Waits until the output of the job's pods has that number of lines with the pattern."""
        self.until(f"{count} times '{pattern}'",
                   lambda: len(re.findall(pattern, job.log())) >= count, seconds)

    def until_saved(self, beyond=0):
        state = self.shared / "step"
        self.until(f"a step after {beyond}",
                   lambda: state.exists() and int(state.read_text("utf-8")) > beyond)
        return int(state.read_text("utf-8"))

    def finish(self, job, failed=0):
        """Lets the training end, and waits until the job is complete.

        failed: how many pods of the job counted as failures before.
        """
        (self.shared / "finish").touch()
        self.until("the job's end", lambda: job.result is not None)
        check(f"the job is Complete, not {job.result}", job.result == "Complete")
        check(f"{failed} failures count, but {job.failed} did", job.failed == failed)
        self.until("the end of all pods",
                   lambda: all(pod.exit_code is not None for pod in job.pods))

    def close(self):
        self.cluster.close()
        shutil.rmtree(self.folder)


def codes(job):
    return [pod.exit_code for pod in job.pods]


def without_service(test):
    """Pods wait for the name of pod 0, and say what it needs."""
    job = test.apply("job.yaml", {"Job"})
    test.until_log(job, r"no rendezvous service answers at train-0\.train:29400 yet: resolve "
                        r"train-0\.train: .*publishNotReadyAddresses: true")
    check("no pod has failed", codes(job) == [None, None])
    job.pod(1).delete()
    test.until("a third pod", lambda: len(job.pods) == 3)
    check(f"a pod that waits leaves with 75, too: {codes(job)}", codes(job) == [None, 75, None])
    test.apply("job.yaml", {"Service"})
    test.until_saved()
    test.finish(job)
    check(f"the others were enough: {codes(job)}", codes(job) == [0, 75, 0])


def killed_worker(test):
    """The workers are started again. No pod is made."""
    job = test.apply("job.yaml")
    test.until_log(job, r"rank \d of 2 begins at step 0", 2)
    check("ddprun says what it took", "Kubernetes pod with index 1: 2 nodes" in job.pod(1).log())
    step = test.until_saved()
    os.kill(job.pod(1).workers()[0], signal.SIGKILL)
    test.until_log(job, r"restart 1 of 3: rank \d .*was killed by SIGKILL", 2)
    test.until_log(job, r"rank \d of 2 begins at step [1-9]", 2)
    test.until_saved(step)
    test.finish(job)
    check(f"no pod was made again: {codes(job)}", codes(job) == [0, 0])


def deleted_pod(test):
    """All workers save and leave; the pods are made again; the training goes on."""
    job = test.apply("job.yaml")
    step = test.until_saved()
    job.pod(1).delete()
    test.until("four pods", lambda: len(job.pods) == 4)
    check(f"both left with 75: {codes(job)}", codes(job)[:2] == [75, 75])
    check(f"75 counts as no failure: {job.failed}", (job.failed, job.ignored) == (0, 2))
    check("preStop alone was enough", "SIGTERM" not in job.log())
    test.until_log(job, r"rank \d saves at step", 2)
    test.until_log(job, r"rank \d of 2 begins at step [1-9]", 2)
    step = test.until_saved(step)
    # Pod 0 has the service. Its node is drained: its pods go, and the new ones are elsewhere.
    node = job.pod(0).node
    check("all may go", test.cluster.drain(node) == [])
    test.until("six pods", lambda: len(job.pods) == 6)
    check(f"they left with 75: {codes(job)}", codes(job)[2:4] == [75, 75])
    check("no new pod is on the drained node", all(pod.node != node for pod in job.pods[4:]))
    test.until_saved(step)
    test.finish(job)
    check(f"the last pods succeeded: {codes(job)}", codes(job)[4:] == [0, 0])


def deleted_without_pre_stop(test):
    """SIGTERM alone means save and leave. So it does for a pod of an elastic job."""
    service = test.apply("rendezvous.yaml", instead=[("--lease=30", "--lease=6")])
    test.until("a ready service", lambda: service.pods and service.pods[0].is_ready)
    job = test.apply("elastic-job.yaml", instead=[
        ("- name: PET_MAX_RESTARTS", "- {name: PET_CHECKPOINT_SIGNAL, value: USR1}\n"
                                     "            - name: PET_MAX_RESTARTS")])
    test.until_log(job, r"rank \d of 4 begins at step 0", 4)
    step = test.until_saved()
    job.pod(2).delete()
    test.until("eight pods", lambda: len(job.pods) == 8)
    check(f"all left with 75: {codes(job)}", codes(job)[:4] == [75] * 4)
    check("SIGTERM asked for it", "SIGTERM: the workers have 30.0 s to save" in job.log())
    test.until_log(job, r"rank \d of 4 begins at step [1-9]", 4)
    test.until_saved(step)
    test.finish(job)


def lost_pod(test):
    """A pod that was killed is made again, and joins. The other one stays."""
    job = test.apply("job.yaml")
    test.until_log(job, r"rank \d of 2 begins at step 0", 2)
    step = test.until_saved()
    job.pod(1).send(signal.SIGKILL)
    test.until_log(job, r"rank \d of 2 begins at step [1-9]", 2)
    step = test.until_saved(step)
    check(f"one failure counts: {job.failed}", job.failed == 1)
    # The new pod 0 has another address. The service is there again, and pod 1 finds it.
    job.pod(0).send(signal.SIGKILL)
    test.until_log(job, r"rank \d of 2 begins at step [1-9]", 4, seconds=40)
    test.until_saved(step)
    test.finish(job, failed=2)
    check(f"each was made again once: {codes(job)}", codes(job) == [137, 137, 0, 0])


def host_network(test):
    """The host is named as its node. Pod 0 has the service as soon as its name is there."""
    test.cluster.dns_delay = 3
    job = test.apply("job.yaml", instead=[("      subdomain:", "      hostNetwork: true\n"
                                                             "      subdomain:")])
    test.until_log(job, r"rank \d of 2 begins at step 0", 2)
    test.until_saved()
    test.finish(job)
    check(f"no pod was made again: {codes(job)}", codes(job) == [0, 0])


def slow_image(test):
    """Pod 0 is lost and its image pulls for long. The others end, which does not count."""
    job = test.apply("job.yaml", instead=[("completions: 2", "completions: 3"),
                                          ("parallelism: 2", "parallelism: 3"),
                                          ('value: "2"', 'value: "3"')])
    test.until_log(job, r"rank \d of 3 begins at step 0", 3)
    step = test.until_saved()
    test.cluster.creating = 20  # the name is there at once, and its address refuses connections
    job.pod(0).send(signal.SIGKILL)
    test.until("another pod 0", lambda: len(job.pods) == 4)
    test.cluster.creating = 0.0
    test.until("the end of the others", lambda: job.ignored == 2, 30)
    check(f"they end with 67: {codes(job)}", codes(job)[:3] == [137, 67, 67])
    test.until_log(job, r"rank \d of 3 begins at step [1-9]", 3, seconds=40)
    test.until_saved(step)
    test.finish(job, failed=1)


def no_number_of_pods(test):
    """Without PET_NNODES pod 1 says what is missing. Another try would not help."""
    job = test.apply("job.yaml", instead=[("PET_NNODES", "PET_QUIET")])
    test.until("the job's end", lambda: job.result is not None)
    check(f"it is not tried again: {job.result}", job.result == "Failed: PodFailurePolicy")
    check("the error has the remedy",
          "Kubernetes pod with index 1: PET_NNODES is not set: set it to the number of pods in "
          "the manifest" in job.pod(1).log())
    # Pods that meet no other pod may train alone, each its own job.
    for endpoint in ({}, {"PET_RDZV_ENDPOINT": "localhost:0"}):
        env = {"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "10.96.0.1",
               "JOB_COMPLETION_INDEX": "1", **endpoint}
        alone = subprocess.run([BIN / "ddprun", "true"], env=env, stderr=subprocess.PIPE,
                               check=False)
        check("a pod that trains alone is warned, and runs",
              alone.returncode == 0 and b"trains alone: PET_NNODES is not set" in alone.stderr)


def elastic(test):
    """The job shrinks when a pod goes, and grows when it is there again."""
    # A service that has just started waits four fifths of the lease for nodes that may come back.
    service = test.apply("rendezvous.yaml", instead=[("--lease=30", "--lease=6")])
    test.until("a ready service", lambda: service.pods and service.pods[0].is_ready)
    job = test.apply("elastic-job.yaml")
    test.until_log(job, r"rank \d of 4 begins", 4)
    test.until_saved()
    deleted = job.pod(2)
    deleted.delete()
    test.until_log(job, r"rank \d of 3 begins at step [1-9]", 3)
    test.until_log(job, r"rank \d of 4 begins at step [1-9]", 4)
    check(f"SIGTERM ended the pod: {deleted.exit_code}", deleted.exit_code == 143)
    check("one pod was made again", len(job.pods) == 5)
    # The drain takes the job's pods, but not the service: its budget protects it.
    step = test.until_saved()
    node = service.pods[0].node
    gone = [pod for pod in job.active() if pod.node == node]
    check("the service stays", test.cluster.drain(node) == service.pods)
    test.until_log(job, rf"rank \d of {4 - len(gone)} begins", 4 - len(gone))
    test.until_log(job, r"rank \d of 4 begins at step [1-9]", 8)
    test.until_saved(step)
    check("no index has failed", not job.index_failures and job.ignored == 1 + len(gone))
    # The service is killed. The next one has its state, and the job does not notice.
    begun = len(re.findall("begins at step", job.log()))
    service.pods[0].send(signal.SIGKILL)
    test.until("another service", lambda: len(service.pods) == 2)
    test.until_log(service, "took over generation")
    step = test.until_saved(int((test.shared / "step").read_text("utf-8")))
    check("no worker was started again", len(re.findall("begins at step", job.log())) == begun)
    # A pod that cannot start any more is given up. The others go on without it.
    test.cluster.broken = "elastic-3"
    job.pod(3).delete()
    test.until("index 3 has failed", lambda: job.failed_indexes == {3})
    step = test.until_saved(step)
    test.until_saved(step)
    test.finish(job)
    check(f"it was tried 1 + 3 times: {codes(job)}", codes(job).count(128) == 4)


def jobset(test):
    """Four pods of two Jobs with the same indexes are one training."""
    job = test.apply("jobset.yaml")
    test.until_log(job, r"rank [0-3] of 4 begins at step 0", 4)
    step = test.until_saved()
    job.jobs[1].pod(0).delete()
    test.until("eight pods", lambda: len(job.pods) == 8)
    check("all left with 75", sorted(map(str, codes(job)))[:4] == ["75"] * 4)
    test.until_log(job, r"rank [0-3] of 4 begins at step [1-9]", 4)
    step = test.until_saved(step)
    node = job.jobs[0].pod(0).node
    check("all may go", test.cluster.drain(node) == [])
    test.until("twelve pods", lambda: len(job.pods) == 12)
    check(f"all left with 75: {codes(job)}", [code for code in codes(job) if code is not None] ==
          [75] * 8)
    test.until_saved(step)
    test.finish(job)


def killed_pod_of_jobset(test):
    """Its Job fails, so all pods are made again, and the training goes on."""
    job = test.apply("jobset.yaml", instead=[
        ("sleep 85", "sleep 2"),
        ("- name: PET_MAX_RESTARTS", "- {name: PET_SHUTDOWN_GRACE, value: '5'}\n"
                                     "                    - name: PET_MAX_RESTARTS")])
    test.until_log(job, r"rank [0-3] of 4 begins at step 0", 4)
    step = test.until_saved()
    job.jobs[1].pod(0).send(signal.SIGKILL)
    test.until("eight pods", lambda: len(job.pods) == 8, 60)
    check(f"one was killed: {codes(job)}", codes(job)[:4].count(137) == 1)
    test.until_log(job, r"rank [0-3] of 4 begins at step [1-9]", 4, seconds=40)
    test.until_saved(step)
    check("it was the only restart", job.restarts == 1)
    test.finish(job, failed=job.failed)


def restarted_jobset(test):
    """The training fails. All Jobs are made again, and the new pods go on where it was."""
    job = test.apply("jobset.yaml", instead=[('value: "3"', 'value: "0"')])  # PET_MAX_RESTARTS
    test.until_log(job, r"rank [0-3] of 4 begins at step 0", 4)
    step = test.until_saved()
    os.kill(job.jobs[1].pod(0).workers()[0], signal.SIGKILL)
    test.until("eight pods", lambda: len(job.pods) == 8)
    attempts = [pod.labels["jobset.sigs.k8s.io/restart-attempt"] for pod in job.pods]
    check(f"it is the next attempt: {attempts}", sorted(attempts) == ["0"] * 4 + ["1"] * 4)
    test.until_log(job, r"rank [0-3] of 4 begins at step [1-9]", 4, seconds=40)
    test.until_saved(step)
    check("it was the only restart", job.restarts == 1)
    test.finish(job, failed=job.failed)
    check(f"the first pods told of the failure: {codes(job)}", codes(job)[:4] == [137] * 4)
    check(f"the new pods succeeded: {codes(job)}", codes(job)[4:] == [0] * 4)


def trainjob(test):
    """The Trainer's variables are enough."""
    job = test.apply("trainjob.yaml")
    test.until_log(job, r"rank [01] of 2 begins at step 0", 2)
    step = test.until_saved()
    os.kill(job.pods[1].workers()[0], signal.SIGKILL)
    test.until_log(job, r"restart 1 of 3: ", 2)
    step = test.until_saved(step)
    check(f"no pod was made again: {codes(job)}", codes(job) == [None, None])
    job.pods[1].delete()
    test.until("four pods", lambda: len(job.pods) == 4)
    check(f"both left with 75: {codes(job)}", codes(job)[:2] == [75, 75])
    test.until_log(job, r"rank [01] of 2 begins at step [1-9]", 4)
    test.until_saved(step)
    test.finish(job)


def host_network_of_trainjob(test):
    """The host is named as its node, and the name of pod 0 comes late."""
    test.cluster.dns_delay = 3
    job = test.apply("trainjob.yaml", instead=[("                  restartPolicy: Never",
                                                "                  hostNetwork: true\n"
                                                "                  restartPolicy: Never")])
    test.until_log(job, r"rank [01] of 2 begins at step 0", 2)
    test.until_saved()
    test.finish(job)
    check(f"no pod was made again: {codes(job)}", codes(job) == [0, 0])


def real_training(test):
    """A program of ddprun's library loses no step when a pod is deleted."""
    program = BIN / "train_digits"
    (test.cluster.image / "train").write_text(
        f"#!/bin/sh\nOMP_NUM_THREADS=1 exec {program} --data {SOURCE}/examples/data/digits"
        " --checkpoint-dir /mnt/checkpoints --epochs 10\n")
    job = test.apply("job.yaml")
    test.until_log(job, r"epoch +2 ", seconds=40)
    job.pod(1).delete()
    test.until("the job's end", lambda: job.result is not None, 60)
    check(f"the job is Complete, not {job.result}", job.result == "Complete")
    check(f"all left, and came back: {codes(job)}", codes(job)[:3] == [75, 75, 0])
    check("they resumed", re.search(r"resumed at step [1-9]", job.log()))
    check("no step was done again",
          re.search(r"steps (\d+), executed in all generations \1\n", job.log()))


# The longest ones first.
TESTS = [slow_image, lost_pod, elastic, without_service, host_network_of_trainjob, deleted_pod,
         deleted_without_pre_stop, killed_pod_of_jobset, restarted_jobset, jobset, trainjob,
         killed_worker, host_network, no_number_of_pods]
# Only by name: it needs the worker library.
MORE_TESTS = [real_training]


def play(function):
    """Runs a test. Returns whether it succeeded."""
    begin = time.monotonic()
    test = None
    try:
        test = Test()
        function(test)
        print(f"ok: {function.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
        return True
    except Exception:  # pylint: disable=broad-except
        print(f"FAILED: {function.__name__}")
        traceback.print_exc(file=sys.stdout)
        for pod in test.cluster.pods if test else []:
            print(f"--- {pod.name} on {pod.node}: {pod.exit_code}\n{pod.log()}", flush=True)
        return False
    finally:
        if test:
            test.close()


def play_apart(function):
    """Runs a test in a process of its own. Each has its own cluster."""
    done = subprocess.run(["setpriv", "--pdeathsig", "TERM", sys.executable, __file__, SOURCE, BIN,
                           function.__name__],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(done.stdout.decode(errors="replace"), end="", flush=True)
    return done.returncode == 0


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.argv[3:]:
        tests = {test.__name__: test for test in TESTS + MORE_TESTS}
        return 0 if all([play(tests[name]) for name in sys.argv[3:]]) else 1
    kubelet.remove_left()
    # They wait most of the time.
    at_once = min(len(TESTS), max(3, os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return 0 if all(list(pool.map(play_apart, TESTS))) else 1


if __name__ == "__main__":
    sys.exit(main())
