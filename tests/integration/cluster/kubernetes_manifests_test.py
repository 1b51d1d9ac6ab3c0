#!/usr/bin/env python3
"""Validates the manifests of packaging/kubernetes by the schemas of each version of Kubernetes and
by the models of the Kubeflow Trainer, and checks what no schema says.

    kubernetes_manifests_test.py SOURCE_DIR
"""
import copy
import pathlib
import re
import sys

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

FOLDER = pathlib.Path(sys.argv[1]) / "packaging" / "kubernetes"
OLDEST, NEWEST = (1, 30), (1, 37)
NO_SCHEMA = {"ServiceMonitor"}
failures = []

REMEDY = ": scripts/setup --tests installs it"
needs.module("kubernetes_validate", REMEDY)
needs.module("kubeflow_trainer_api", REMEDY)
# pylint: disable=wrong-import-position
import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions
from kubeflow_trainer_api import models

MODELS = {"JobSet": models.JobsetV1alpha2JobSet,
          "TrainJob": models.TrainerV1alpha1TrainJob,
          "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}


def check(what, is_true, more=""):
    if not is_true:
        failures.append(f"{what} {more}".strip())
        print(f"FAILED: {what} {more}")


def versions():
    """Returns one version of each minor version that is tested and that has schemas."""
    of_minor = {tuple(map(int, v.split(".")[:2])): v for v in all_versions()}
    return [v for minor, v in sorted(of_minor.items()) if OLDEST <= minor <= NEWEST]


def validate(resource, where):
    for version in versions():
        try:
            used = kubernetes_validate.validate(resource, version, strict=True)
            check(where, version.startswith(used), f"has no schema of {version}")
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            check(where, False, f"is not valid in {version}: {path}: {error.message}")


def differences(left, right, path=""):
    """Yields the paths of the fields in which the two differ. 1 and 1.0 are the same quantity."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            yield from differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right)):
            yield from differences(one, other, f"{path}[{index}]")
    elif left != right:
        yield path


def validate_by_model(resource, where):
    """Models drop fields that they do not know: nothing may be missing afterwards."""
    try:
        again = MODELS[resource["kind"]].from_dict(copy.deepcopy(resource)).to_dict()
    except ValueError as error:
        check(where, False, str(error))
        return
    lost = list(differences(resource, again))
    check(where, not lost, f"the model does not know {', '.join(lost)}")


def jobs_of(resource):
    """Yields the name and the spec of each Job that the resource is or contains."""
    spec = resource.get("spec", {})
    if resource["kind"] == "Job":
        yield resource["metadata"]["name"], spec
    if resource["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs", []):
        yield job["name"], job["template"]["spec"]


def codes_of_docs():
    """Returns the exit codes that the table of the reference has."""
    text = (FOLDER.parents[1] / "docs/reference/exit_codes.md").read_text(encoding="utf-8")
    return {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def check_numbers(name, resources):
    """Checks that the numbers of pods in a manifest agree."""
    (spec,) = [spec for resource in resources for _, spec in jobs_of(resource)]
    (container,) = spec["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    kinds = {resource["kind"]: resource["spec"] for resource in resources}
    if "TrainJob" in kinds:
        pods = kinds["TrainJob"]["trainer"]["numNodes"]
        check(name, kinds["TrainingRuntime"]["mlPolicy"]["numNodes"] == pods, "numNodes differ")
    else:
        pods = spec["completions"]
        check(name, spec["parallelism"] == pods, "parallelism is not completions")
        groups = kinds["JobSet"]["replicatedJobs"][0]["replicas"] if "JobSet" in kinds else 1
        least, _, most = env["PET_NNODES"].partition(":")
        check(name, int(most or least) == groups * pods, "PET_NNODES is not the number of pods")
        if most:
            check(name, spec["maxFailedIndexes"] == int(most) - int(least),
                  "maxFailedIndexes is not MAX - MIN")
    if "JobSet" in kinds:  # a failed pod ends its Job, and the JobSet makes all Jobs again
        check(name, spec["backoffLimit"] == 0, "backoffLimit is not 0")
    elif "backoffLimitPerIndex" not in spec:
        check(name, spec["backoffLimit"] >= pods, "backoffLimit is below the number of pods")


def check_job(spec, where):
    """Checks what the API server checks but no schema, and what a pod of ddprun needs."""
    pod = spec["template"]["spec"]
    check(where, pod["restartPolicy"] == "Never", "podFailurePolicy needs restartPolicy Never")
    containers = {c["name"]: c for c in pod["containers"]}
    ignored = set()
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        check(where, bool(codes) != ("onPodConditions" in rule), "a rule has one condition")
        if not codes:
            continue
        check(where, codes["containerName"] in containers, "a rule names no container")
        check(where, set(codes["values"]) <= codes_of_docs() | {143}, "a code is not ddprun's")
        check(where, codes["values"] == sorted(set(codes["values"])), "codes are not sorted")
        if rule["action"] == "Ignore":
            ignored |= set(codes["values"])
        else:
            check(where, codes["values"] == [2, 66], "a code may come from one node")
    check(where, 75 in ignored, "75 counts as a failure")
    seconds = {t["key"]: t["tolerationSeconds"] for t in pod["tolerations"]}
    check(where, seconds == {"node.kubernetes.io/not-ready": 30,
                             "node.kubernetes.io/unreachable": 30}, "tolerations")
    (container,) = containers.values()
    shm = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    volumes = {v["name"]: v for v in pod["volumes"]}
    check(where, len(shm) == 1 and volumes[shm[0]]["emptyDir"]["medium"] == "Memory",
          "/dev/shm is not memory")
    env = {e["name"]: e.get("value", "") for e in container["env"]}
    own = {"DDPRUN_RDZV_KEY"}
    check(where, all(n in own or n.startswith("PET_") for n in env), "a variable is invented")
    grace = pod["terminationGracePeriodSeconds"]
    if "PET_CHECKPOINT_SIGNAL" in env:
        command = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        waits = int(re.search(r"sleep (\d+)", command).group(1))
        check(where, f"kill -{env['PET_CHECKPOINT_SIGNAL']} 1" in command, "preStop: other signal")
        check(where, waits + 30 < grace, "SIGKILL comes before --shutdown-grace is over")
    check(where, grace > 30, "SIGKILL comes before --shutdown-grace is over")


def main():
    count = 0
    minors = [version.split(".")[:2] for version in versions()]
    wanted = [["1", str(minor)] for minor in range(OLDEST[1], NEWEST[1] + 1)]
    check("versions of Kubernetes", minors == wanted, f"are {', '.join(versions())}")
    paths = sorted(FOLDER.glob("*.yaml"))
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+\.yaml)`", readme, re.MULTILINE)
    check("README.md", sorted(listed) == [path.name for path in paths], f"lists {listed}")
    for path in paths:
        resources = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        check(path.name, resources, "is empty")
        if any(list(jobs_of(resource)) for resource in resources):
            check_numbers(path.name, resources)
        for resource in resources:
            where = f"{path.name}: {resource['kind']} {resource['metadata']['name']}"
            count += 1
            if resource["kind"] in NO_SCHEMA:
                print(f"not validated, no schema: {where}")
            elif resource["kind"] in MODELS:
                validate_by_model(resource, where)
            else:
                validate(resource, where)
            for name, spec in jobs_of(resource):
                if resource["kind"] != "Job":  # a JobSet holds templates of ordinary Jobs
                    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
                              "spec": spec}, where)
                check_job(spec, where)
    print(f"{count} resources; Kubernetes {', '.join(versions())}; {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
