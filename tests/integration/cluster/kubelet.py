"""A small kubelet with the controllers that a Job, a JobSet, a TrainJob and a Deployment need.

Pods are namespaces (network, PID, mount, UTS, IPC) with the environment, the host name, the
resolv.conf and the /etc/hosts that the documentation of Kubernetes gives. They share the file
system of this host, except volumes, /tmp and /dev/shm. A dnsmasq answers as the cluster's DNS.
Needs root, iproute2, util-linux and dnsmasq.

Sources: Kubernetes, "Jobs" (indexes, failure policy, replacement), "DNS for Services and Pods",
"Pod Lifecycle" (termination), "API-initiated Eviction", "Service" (environment); JobSet,
jobset_controller.go and failure_policy.go; Kubeflow Trainer, torch.go. What is simpler here:

- A Service with an address has that of its pod.
- A failed pod is replaced after REPLACED_AFTER, not after 10 s, 20 s and so on.
- It has no resource limits, no images and no API server. A node is only a name. A container
  may start late, as if its image were pulled (Cluster.creating).

One thread: Cluster.step() does what is due. Cluster.until() calls it.
"""
import contextlib
import copy
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid

SUBNET = "10.82.3"
DOMAIN = "default.svc.cluster.local"
REPLACED_AFTER = 0.5
DNS_DELAY = 0.5  # until the cluster's DNS has the name of a pod
JOB = "batch.kubernetes.io/"
JOBSET = "jobset.sigs.k8s.io/"


def run(*command, **options):
    subprocess.run(command, check=True, **options)


def matches(labels, selector):
    return all(labels.get(key) == value for key, value in selector.items())


def remove_left():
    """Removes the namespaces of a test that was killed."""
    for path in pathlib.Path("/run/netns").glob("kub*-*"):
        owner = path.name[3:].split("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            subprocess.run(["ip", "netns", "del", path.name], check=False)


class Network:
    """A switch in a namespace of its own, and the DNS of the cluster behind it."""

    def __init__(self, folder):
        self.tag = f"kub{os.getpid()}-"
        self.switch = self.tag + "switch"
        self.names = []
        self.hosts = folder / "dns"
        self.hosts.write_text("")
        self.hosts.chmod(0o644)  # dnsmasq reads it as another user
        self.last = 1
        self._ip("netns", "add", self.switch)
        self.names.append(self.switch)
        # With an address of its own, br0 does not take that of a host that comes later.
        for words in ("link add br0 address 02:00:00:00:00:01 type bridge", "link set lo up",
                      f"addr add {SUBNET}.1/24 dev br0", "link set br0 up"):
            self._ip("-n", self.switch, *words.split())
        # Names that are not there do not exist (NXDOMAIN), also outside the cluster.
        self.dns = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",
             "ip", "netns", "exec", self.switch, "dnsmasq", "--no-daemon",
             "--conf-file=/dev/null", "--no-hosts", "--no-resolv", f"--addn-hosts={self.hosts}",
             f"--listen-address={SUBNET}.1", "--bind-interfaces", "--address=/#/",
             "--no-negcache"],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def _ip(*words):
        run("ip", *words)

    def listens(self):
        """Returns whether the DNS answers."""
        try:
            return ":0035 " in pathlib.Path(f"/proc/{self.dns.pid}/net/udp").read_text("utf-8")
        except OSError:
            return False

    def add(self):
        """Returns the namespace and the address of a new host."""
        self.last += 1
        name, address = f"{self.tag}{self.last}", f"{SUBNET}.{self.last}"
        self._ip("netns", "add", name)
        self.names.append(name)
        self._ip("link", "add", f"e{self.last}", "netns", self.switch, "type", "veth",
                 "peer", "name", "eth0", "netns", name)
        self._ip("-n", self.switch, "link", "set", f"e{self.last}", "master", "br0", "up")
        for words in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
            self._ip("-n", name, *words.split())
        return name, address

    def remove(self, name):
        self._ip("netns", "del", name)
        self.names.remove(name)

    def publish(self, records):
        text = "".join(f"{address} {name}\n" for name, address in sorted(records))
        if text != self.hosts.read_text("utf-8"):
            self.hosts.write_text(text)
            self.dns.send_signal(signal.SIGHUP)

    def close(self):
        self.dns.kill()
        self.dns.wait()
        for name in list(self.names):
            self.remove(name)


class Pod:
    """A pod of one container. The kubelet's part: it starts, probes and ends the container."""

    def __init__(self, cluster, name, template, node):
        self.cluster, self.name, self.node = cluster, name, node
        self.spec = template["spec"]
        metadata = template.get("metadata", {})
        self.labels = metadata.get("labels", {})
        self.annotations = metadata.get("annotations", {})
        self.host_name = self.spec.get("hostname", name)
        self.subdomain = self.spec.get("subdomain")
        # With hostNetwork it is the name of the node. Here the pod has a network all the same.
        self.own_name = node if self.spec.get("hostNetwork") else self.host_name
        (self.container,) = self.spec["containers"]
        self.conditions = set()
        self.exit_code = None
        self.counted = False
        self.is_ready = False
        self.deletion = None  # (deadline, hook)
        self.term_sent = False
        self.probe, self.probed_at, self.probes_passed = None, 0.0, set()
        self.folder = cluster.folder / "pods" / name
        self.folder.mkdir(parents=True)
        self.log_file = self.folder / "log"
        self.namespace, self.address = cluster.network.add()
        self.started = time.monotonic()
        self.creating = cluster.creating
        with open(self.log_file, "wb") as log:
            # The first child of the shell is process 1 of the pod. It does not outlive this one.
            self.process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--pid", "--mount",
                 "--uts", "--ipc", "setpriv", "--pdeathsig", "KILL", "sh", "-c",
                 'sh "$0"; exit $?', self._script()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return self.log_file.read_text("utf-8", errors="replace")

    def environment(self):
        """Returns what the image, the kubelet and the manifest give to the container."""
        env = {"PATH": f"{self.cluster.bin}:/usr/local/bin:/usr/bin:/bin", "HOME": "/root",
               "HOSTNAME": self.own_name, "KUBERNETES_SERVICE_HOST": "10.96.0.1",
               "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
               "KUBERNETES_PORT": "tcp://10.96.0.1:443",
               "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
               "KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443",
               "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1"}
        for entry in self.container.get("env", []):
            if "value" in entry:
                value = re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), entry["value"])
            elif "secretKeyRef" in entry["valueFrom"]:
                reference = entry["valueFrom"]["secretKeyRef"]
                value = self.cluster.secrets[reference["name"]][reference["key"]]
            else:
                value = self._field(entry["valueFrom"]["fieldRef"]["fieldPath"])
            env[entry["name"]] = value
        return env

    def _field(self, path):
        found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if found:
            return (self.labels if found[1] == "labels" else self.annotations).get(found[2], "")
        return {"metadata.name": self.name, "status.podIP": self.address}[path]

    def _script(self):
        """Returns a script that makes the pod's files and becomes the container's process."""
        hosts = f"127.0.0.1 localhost\n{self.address}"
        if self.subdomain and self.own_name == self.host_name:
            hosts += f" {self.host_name}.{self.subdomain}.{DOMAIN}"
        (self.folder / "hosts").write_text(f"{hosts} {self.own_name}\n")
        (self.folder / "resolv.conf").write_text(
            f"nameserver {SUBNET}.1\nsearch {DOMAIN} svc.cluster.local cluster.local\n"
            "options ndots:5\n")
        lines = ["set -e", "mount -t proc proc /proc", "mount -t tmpfs -o ro no /sys/fs/cgroup",
                 f"hostname {self.own_name}"]
        for name in ("hosts", "resolv.conf"):
            lines.append(f"mount --bind {self.folder / name} /etc/{name}")
        if not str(self.cluster.bin).startswith("/tmp/"):
            lines.append("mount -t tmpfs tmp /tmp")
        if not any(m["mountPath"] == "/dev/shm" for m in self.container["volumeMounts"]):
            lines.append("mount -t tmpfs -o size=64m shm /dev/shm")
        group = self.spec.get("securityContext", {}).get("fsGroup")
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            lines += self._mount(volumes[mount["name"]], mount["mountPath"], group)
        user = self.spec.get("securityContext", {}).get("runAsUser")
        drop = [] if user is None else [
            f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            "--bounding-set=-all", "--inh-caps=-all"]
        env = [f"{name}={value}" for name, value in self.environment().items()]
        command = self.container["command"] + self.container.get("args", [])
        if self.host_name == self.cluster.broken:
            command = ["sh", "-c", "exit 128"]  # as containers end that cannot be started
        if self.creating:
            lines.append(f"sleep {self.creating}")
        lines += [f"cd {self.cluster.image}",
                  "exec " + shlex.join(["setpriv", "--pdeathsig", "KILL", *drop, "env", "-i", *env,
                                        *command])]
        script = self.folder / "start"
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o600)
        return str(script)

    def _mount(self, volume, path, group):
        """Returns commands that mount the volume there, if need be in a new folder."""
        if "emptyDir" in volume:
            assert volume["emptyDir"]["medium"] == "Memory"
            return [f"mount -t tmpfs -o size=64m shm {path}"]
        source = self.cluster.claim(volume["persistentVolumeClaim"]["claimName"])
        if group is not None:
            os.chown(source, -1, group)
            source.chmod(0o2775)
        there = pathlib.Path(path)
        while not there.exists():
            there = there.parent
        lines = [] if there == pathlib.Path(path) else [f"mount -t tmpfs new {there}"]
        return lines + [f"mkdir -p {path}", f"mount --bind {source} {path}"]

    def first_process(self):
        """Returns the id of the container's process 1 on this host, or None."""
        me = self.process.pid
        try:
            children = pathlib.Path(f"/proc/{me}/task/{me}/children").read_text("utf-8").split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def send(self, number):
        """Sends a signal to the container's process 1. Returns whether there is one."""
        first = self.first_process()
        if first is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, number)
        return True

    def workers(self):
        """Returns the ids of the container's processes other than ddprun, on this host."""
        first = self.first_process()
        if first is None:
            return []
        inside, found = os.stat(f"/proc/{first}/ns/pid").st_ino, []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if os.stat(entry / "ns/pid").st_ino == inside and b"./train" in command:
                    if not any(word.endswith(b"ddprun") for word in command):
                        found.append(int(entry.name))
            except OSError:
                continue
        return found

    def delete(self, condition=None):
        """Begins what the kubelet does with a pod that was deleted or evicted."""
        if self.deletion or self.exit_code is not None:
            return
        if condition:
            self.conditions.add(condition)
        hook, first = None, self.first_process()
        command = self.container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
        if command and first:
            env = [f"{name}={value}" for name, value in self.environment().items()]
            hook = subprocess.Popen(
                ["nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "env", "-i", *env,
                 *command["command"]], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        grace = self.spec.get("terminationGracePeriodSeconds", 30)
        self.deletion = (time.monotonic() + grace, hook)

    def _go_on_deleting(self):
        deadline, hook = self.deletion
        if time.monotonic() >= deadline:
            self.send(signal.SIGKILL)
        elif not self.term_sent and (hook is None or hook.poll() is not None):
            self.term_sent = self.send(signal.SIGTERM)

    def _go_on_probing(self):
        if time.monotonic() < self.started + self.creating:
            return
        probes = {kind: self.container[f"{kind}Probe"] for kind in ("readiness", "liveness")
                  if f"{kind}Probe" in self.container}
        if "readiness" not in probes:
            self.is_ready = True
            return
        if self.probe:
            kind, process = self.probe
            if process.poll() is None:
                return
            if process.returncode == 0:
                self.probes_passed.add(kind)
            self.is_ready = self.probes_passed == set(probes)
            self.probe = None
        if self.is_ready or time.monotonic() < self.probed_at + 0.1:
            return
        self.probed_at = time.monotonic()
        kind = next(k for k in probes if k not in self.probes_passed)
        get = probes[kind]["httpGet"]
        ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        url = f"http://{self.address}:{ports[get['port']]}{get['path']}"
        self.probe = (kind, subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.namespace}", sys.executable, "-I", "-c",
             f"import urllib.request; urllib.request.urlopen({url!r}, timeout=2)"],
            stderr=subprocess.DEVNULL))

    def step(self):
        if self.exit_code is not None:
            return
        code = self.process.poll()
        if code is None:
            self._go_on_probing()
            if self.deletion:
                self._go_on_deleting()
            return
        self.exit_code = code
        self.is_ready = False
        hook = self.deletion[1] if self.deletion else None
        if hook:
            hook.wait()
        self.cluster.network.remove(self.namespace)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()
        for process in filter(None, [self.deletion and self.deletion[1],
                                     self.probe and self.probe[1]]):
            process.kill()
            process.wait()


class Job:
    """The Job controller, for one Indexed Job."""

    def __init__(self, cluster, resource, labels=None):
        self.cluster, self.name = cluster, resource["metadata"]["name"]
        self.spec = resource["spec"]
        assert self.spec["completionMode"] == "Indexed"
        assert self.spec["podReplacementPolicy"] == "Failed"
        self.uid = str(uuid.uuid4())
        self.labels = labels or {}
        self.pods = []
        self.succeeded, self.failed_indexes = set(), set()
        self.failed, self.ignored, self.index_failures = 0, 0, {}
        self.result = None  # "Complete" or "Failed", with the reason
        self.is_deleted = False
        self.replace_at = {}

    def _create(self, index):
        template = copy.deepcopy(self.spec["template"])
        metadata = template.setdefault("metadata", {})
        label = JOB + "job-completion-index"
        metadata.setdefault("annotations", {})[label] = str(index)
        metadata.setdefault("labels", {}).update(self.labels)
        metadata["labels"].update({
            label: str(index), JOB + "job-name": self.name, "job-name": self.name,
            JOB + "controller-uid": self.uid, "controller-uid": self.uid})
        template["spec"]["hostname"] = f"{self.name}-{index}"
        for container in template["spec"]["containers"]:
            container.setdefault("env", []).append(
                {"name": "JOB_COMPLETION_INDEX",
                 "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}})
        name = f"{self.name}-{index}-{uuid.uuid4().hex[:5]}"
        pod = self.cluster.create_pod(name, template)
        pod.index = index
        self.pods.append(pod)

    def active(self):
        return [pod for pod in self.pods if pod.exit_code is None]

    def pod(self, index):
        """Returns the newest pod of the index."""
        return [pod for pod in self.pods if pod.index == index][-1]

    def log(self):
        return "".join(pod.log() for pod in self.pods)

    def _action(self, pod):
        for rule in self.spec.get("podFailurePolicy", {"rules": []})["rules"]:
            codes = rule.get("onExitCodes")
            if codes:
                is_in = pod.exit_code in codes["values"]
                if is_in == (codes["operator"] == "In"):
                    return rule["action"]
            elif any(c["type"] in pod.conditions for c in rule["onPodConditions"]):
                return rule["action"]
        return "Count"

    def _count(self, pod):
        pod.counted = True
        if pod.exit_code == 0:
            self.succeeded.add(pod.index)
            return
        self.replace_at[pod.index] = time.monotonic() + REPLACED_AFTER
        action = self._action(pod)
        if action == "Ignore":
            self.ignored += 1
        elif action == "FailJob":
            self._finish("Failed: PodFailurePolicy")
        elif "backoffLimitPerIndex" in self.spec:
            self.index_failures[pod.index] = self.index_failures.get(pod.index, 0) + 1
            if self.index_failures[pod.index] > self.spec["backoffLimitPerIndex"]:
                self.failed_indexes.add(pod.index)
            if len(self.failed_indexes) > self.spec.get("maxFailedIndexes", 10**6):
                self._finish("Failed: MaxFailedIndexesExceeded")
        else:
            self.failed += 1
            if self.failed > self.spec["backoffLimit"]:
                self._finish("Failed: BackoffLimitExceeded")

    def _finish(self, result):
        if not self.result:
            self.result = result
            for pod in self.active():
                pod.delete()

    def delete(self):
        """The pods go, too. Their ends count no more."""
        self.is_deleted = True
        self._finish("Deleted")

    def _meets_success_policy(self):
        for rule in self.spec.get("successPolicy", {"rules": []})["rules"]:
            indexes = set(range(self.spec["completions"]))
            if "succeededIndexes" in rule:
                indexes = {int(index) for index in rule["succeededIndexes"].split(",")}
            if len(self.succeeded & indexes) >= rule.get("succeededCount", len(indexes)):
                return True
        return False

    def step(self):
        if self.is_deleted:
            return
        for pod in self.pods:
            if pod.exit_code is not None and not pod.counted:
                self._count(pod)
        if self.result:
            return
        over = self.succeeded | self.failed_indexes
        if self._meets_success_policy() or len(self.succeeded) == self.spec["completions"]:
            return self._finish("Complete")
        if len(over) == self.spec["completions"]:
            return self._finish("Failed: FailedIndexes")
        has_pod = {pod.index for pod in self.active()}
        for index in range(self.spec["completions"]):
            is_due = time.monotonic() >= self.replace_at.get(index, 0)
            if index not in over | has_pod and is_due and len(has_pod) < self.spec["parallelism"]:
                self._create(index)
                has_pod.add(index)


class JobSet:
    """The JobSet controller.

    A Job that failed restarts the whole set: all Jobs are deleted, and each is made again with the
    next restart-attempt as soon as its own pods are gone (failure_policy.go, deleteJobs() and
    shouldCreateJob() in jobset_controller.go; restartStrategy Recreate, the default).
    """

    def __init__(self, cluster, resource):
        self.cluster, self.name = cluster, resource["metadata"]["name"]
        spec = resource["spec"]
        network = spec.get("network", {})
        subdomain = network.get("subdomain", self.name)
        uid, self.jobs, self.previous = str(uuid.uuid4()), [], []
        self.policy = spec.get("failurePolicy", {})
        self.restarts, self.has_failed, self.templates = 0, False, []
        cluster.apply({"kind": "Service", "metadata": {"name": subdomain}, "spec": {
            "clusterIP": "None", "selector": {JOBSET + "jobset-name": self.name},
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True)}})
        for replicated in spec["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                template = copy.deepcopy(replicated["template"])
                if network.get("enableDNSHostnames", True):
                    template["spec"]["template"]["spec"]["subdomain"] = subdomain
                template["spec"].setdefault("completionMode", "Indexed")
                template["metadata"] = {"name": f"{self.name}-{replicated['name']}-{index}"}
                labels = {JOBSET + "jobset-name": self.name, JOBSET + "jobset-uid": uid,
                          JOBSET + "replicatedjob-name": replicated["name"],
                          JOBSET + "job-index": str(index)}
                self.templates.append((template, labels))
        self._create()

    @property
    def pods(self):
        return [pod for job in self.previous + self.jobs for pod in job.pods]

    @property
    def result(self):
        if self.has_failed:
            return "Failed: FailedJobs"
        is_complete = len(self.jobs) == len(self.templates) and all(
            job.result == "Complete" for job in self.jobs)
        return "Complete" if is_complete else None

    @property
    def failed(self):
        return sum(job.failed for job in self.previous + self.jobs)

    def log(self):
        return "".join(job.log() for job in self.previous + self.jobs)

    def _create(self):
        has_name = {job.name for job in self.jobs}
        has_name |= {job.name for job in self.previous if job.active()}
        for template, labels in self.templates:
            if template["metadata"]["name"] not in has_name:
                attempt = {JOBSET + "restart-attempt": str(self.restarts)}
                self.jobs.append(Job(self.cluster, copy.deepcopy(template), labels | attempt))

    def _may_restart(self, failed):
        reasons = {job.result.removeprefix("Failed: ") for job in failed}
        for rule in self.policy.get("rules", []):
            assert rule["action"] == "FailJobSet"
            if reasons & set(rule["onJobFailureReasons"]):
                return False
        return self.restarts < self.policy.get("maxRestarts", 0)

    def step(self):
        for job in self.previous + self.jobs:
            job.step()
        failed = [job for job in self.jobs if (job.result or "").startswith("Failed")]
        if failed and not self._may_restart(failed):
            self.has_failed = True
        elif failed:
            self.restarts += 1
            for job in self.jobs:
                job.delete()
            self.previous, self.jobs = self.previous + self.jobs, []
        if not self.has_failed:
            self._create()


def jobset_of(train_job, runtime):
    """Returns the JobSet that the Kubeflow Trainer makes of a TrainJob with the policy torch."""
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    template = copy.deepcopy(runtime["spec"]["template"])
    (replicated,) = template["spec"]["replicatedJobs"]
    nodes = trainer.get("numNodes", runtime["spec"]["mlPolicy"]["numNodes"])
    replicated["replicas"] = 1
    replicated["template"]["spec"].update(completions=nodes, parallelism=nodes)
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"
    container.update({key: trainer[key] for key in ("image", "command", "args") if key in trainer})
    container["env"] = container.get("env", []) + [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer["numProcPerNode"])},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {
            "fieldPath": f"metadata.annotations['{JOB}job-completion-index']"}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": "29400"}]
    return {"kind": "JobSet", "metadata": {"name": name}, "spec": template["spec"]}


class Deployment:
    """The Deployment controller with one ReplicaSet."""

    def __init__(self, cluster, resource):
        self.cluster, self.name = cluster, resource["metadata"]["name"]
        self.spec = resource["spec"]
        self.pods = []

    def log(self):
        return "".join(pod.log() for pod in self.pods)

    def step(self):
        running = [pod for pod in self.pods if pod.exit_code is None]
        if len(running) < self.spec["replicas"]:
            name = f"{self.name}-{uuid.uuid4().hex[:5]}"
            self.pods.append(self.cluster.create_pod(name, copy.deepcopy(self.spec["template"])))


class Cluster:
    """The API server, the scheduler and the endpoints, for the namespace default.

    folder: for files of the pods. image: the working directory of containers. bin: comes first in
    their PATH. secrets: values by name and key.
    """

    def __init__(self, folder, image, bin_dir, secrets, nodes):
        self.folder, self.image, self.bin, self.secrets = folder, image, bin_dir, secrets
        self.nodes, self.cordoned = nodes, set()
        self.pods, self.services, self.budgets, self.controllers = [], [], [], []
        self.runtimes = {}
        self.dns_delay = DNS_DELAY
        self.creating = 0.0  # seconds until the container of a new pod starts
        self.broken = None  # the host name of pods whose container does not start
        self.network = Network(folder)
        self.until("the DNS of the cluster", self.network.listens)

    def apply(self, resource):
        """Creates the resource. Returns its controller, if it has one."""
        kind, name = resource["kind"], resource["metadata"]["name"]
        makers = {"Job": Job, "JobSet": JobSet, "Deployment": Deployment}
        if kind in makers:
            self.controllers.append(makers[kind](self, resource))
            return self.controllers[-1]
        if kind == "TrainJob":
            return self.apply(jobset_of(resource, self.runtimes[
                resource["spec"]["runtimeRef"]["name"]]))
        if kind == "TrainingRuntime":
            self.runtimes[name] = resource
        elif kind == "Service":
            self.services.append(resource)
        elif kind == "PodDisruptionBudget":
            self.budgets.append(resource["spec"])
        elif kind == "PersistentVolumeClaim":
            self.claim(name)
        else:
            raise ValueError(f"no controller for {kind} {name}")
        return None

    def claim(self, name):
        folder = self.folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def create_pod(self, name, template):
        free = [node for node in self.nodes if node not in self.cordoned]
        load = {node: sum(pod.node == node and pod.exit_code is None for pod in self.pods)
                for node in free}
        self.pods.append(Pod(self, name, template, min(free, key=load.get)))
        return self.pods[-1]

    def evict(self, pod):
        """Returns whether the eviction is allowed. If so, it begins."""
        for budget in self.budgets:
            selector = budget["selector"]["matchLabels"]
            if not pod.is_ready and budget.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
                continue
            if matches(pod.labels, selector):
                ready = sum(p.is_ready for p in self.pods if matches(p.labels, selector))
                if ready - 1 < budget["minAvailable"]:
                    return False
        pod.delete("DisruptionTarget")
        return True

    def drain(self, node):
        """Evicts the pods of a node, which gets no more. Returns the pods that may not go."""
        self.cordoned.add(node)
        return [pod for pod in self.pods
                if pod.node == node and pod.exit_code is None and not self.evict(pod)]

    def _records(self):
        """Yields names and addresses, as the cluster's DNS has them."""
        for service in self.services:
            name, spec = service["metadata"]["name"], service["spec"]
            is_headless = spec.get("clusterIP") == "None"
            for pod in self.pods:
                if pod.exit_code is not None or not matches(pod.labels, spec["selector"]):
                    continue
                if not (pod.is_ready or spec.get("publishNotReadyAddresses")):
                    continue
                if time.monotonic() < pod.started + self.dns_delay:
                    continue
                yield f"{name}.{DOMAIN}", pod.address
                if is_headless and pod.subdomain == name:
                    yield f"{pod.host_name}.{name}.{DOMAIN}", pod.address

    def step(self):
        for part in self.pods + self.controllers:
            part.step()
        self.network.publish(set(self._records()))

    def until(self, what, condition, seconds=20):
        """Runs the cluster until the condition holds. TimeoutError says what never came."""
        deadline = time.monotonic() + seconds
        while True:
            self.step()
            if condition():
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{what}: not within {seconds} s")
            time.sleep(0.02)

    def close(self):
        for pod in self.pods:
            if pod.exit_code is None:
                pod.kill()
        self.network.close()
