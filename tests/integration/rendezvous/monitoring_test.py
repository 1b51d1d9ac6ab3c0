"""Reads the service's pages with Prometheus' own client library and with Python's.

argv[1]: the folder of the programs. A job with an awkward id runs at ddp-rendezvous and fails
once. Then the test reads its metrics, status and health.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PATIENCE = 60.0  # seconds
JOB = 'a "job"\\with all of it, é'


def get(address: str, path: str) -> tuple[int, str, str]:
    """Returns status, content type and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def families(text: str) -> dict:
    from prometheus_client.parser import text_string_to_metric_families
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found, f"{family.name} stands there twice"
        assert family.documentation, f"{family.name} has no help"
        assert family.type in {"counter", "gauge", "histogram"}, (
            f"{family.name} is of type {family.type}")
        series = collections.Counter((s.name, tuple(sorted(s.labels.items())))
                                     for s in family.samples)
        assert not series or max(series.values()) == 1, f"{family.name} has a series twice"
        found[family.name] = family
    return found


def value(text: str, name: str, **labels: str) -> float:
    """Returns the value of one sample; the parser names a counter a_total as the family a."""
    for family in families(text).values():
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    raise AssertionError(f"there is no {name} {labels} in\n{text}")


def check_form(text: str) -> None:
    """Checks what `promtool check metrics` requires of a page that can be parsed."""
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert not re.search(
            r"_(ms|millis\w*|milliseconds|minutes|kb|kilobytes|mb)(_|$)", name), (
                f"{name}: base units")
        assert not re.search(r"_(counter|gauge|histogram)(_|$)", name), f"{name} says its type"
    types = re.findall("^# TYPE ", text, re.MULTILINE)
    assert len(types) == len(re.findall("^# HELP ", text, re.MULTILINE))


def check_metrics(address: str) -> None:
    status, kind, text = get(address, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), (status, kind)
    check_form(text)
    assert value(text, "ddprun_jobs", phase="running") == 1
    assert value(text, "ddprun_restarts_total") == 1
    assert value(text, "ddprun_generations_total") == 2
    assert value(text, "ddprun_job_generation", job=JOB) == 1, "the id comes back as it was"
    assert value(text, "ddprun_job_members", job=JOB) == 1
    lag = families(text)["ddprun_event_loop_lag_seconds"]
    buckets = [s.value for s in lag.samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets), buckets


def check_status(address: str) -> None:
    status, kind, text = get(address, "/status.json")
    assert (status, kind) == (200, "application/json"), (status, kind)
    job = json.loads(text)["jobs"][0]
    assert job["id"] == JOB and job["generation"] == 1 and job["restarts_used"] == 1, job
    assert [(node["first_rank"], node["last_rank"]) for node in job["nodes"]] == [(0, 1)], job
    assert "exited with code 3" in job["events"][-1]["what"], job["events"]


def check_others(address: str) -> None:
    assert get(address, "/healthz")[0] == 200
    assert get(address, "/readyz")[0] == 200
    assert get(address, "/nothing")[0] == 404
    post = urllib.request.Request(f"http://{address}/metrics", data=b"x" * 10000)
    try:
        urllib.request.urlopen(post, timeout=PATIENCE)
        raise AssertionError("a POST was accepted")
    except urllib.error.HTTPError as error:
        assert error.code == 405, error


def wait_for(path: pathlib.Path, job: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline and job.poll() is None, f"no {path.name} came"
        time.sleep(0.02)


def main() -> None:
    needs.module("prometheus_client", "; scripts/setup --tests installs it into .venv")
    binaries = pathlib.Path(sys.argv[1])
    service = subprocess.Popen([binaries / "ddp-rendezvous", "--listen", "127.0.0.1:0"],
                               stdout=subprocess.PIPE, text=True)
    try:
        address = service.stdout.readline().split()[-1]
        with tempfile.TemporaryDirectory() as folder:
            here, go = pathlib.Path(folder) / "here", pathlib.Path(folder) / "go"
            script = (f"[ $DDPRUN_GENERATION = 0 ] && exit 3; : > {here}; "
                      f"while ! [ -e {go} ]; do sleep 0.05; done")
            job = subprocess.Popen([binaries / "ddprun", f"--rdzv-endpoint={address}",
                                    f"--rdzv-id={JOB}", "--max-restarts=3", "--nproc-per-node=2",
                                    "--no-python", "sh", "-c", script])
            try:
                wait_for(here, job)
                check_metrics(address)
                check_status(address)
                check_others(address)
            finally:
                go.touch()
                assert job.wait(PATIENCE) == 0
    finally:
        service.terminate()
        assert service.wait(PATIENCE) == 0
    print("the pages are what others can read")


main()
