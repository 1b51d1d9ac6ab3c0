#!/usr/bin/env python3
"""Writes the software bill of materials: sbom.py BUILD_DIR VERSION ARCHIVE EPOCH FILE

CycloneDX 1.6 in JSON. The parts are those of the build: each header that ninja recorded, and the
static libraries of the linker's commands. Their Debian package names the part. LibTorch, NCCL and
the CUDA run-time are the folders that CMake found. PARTS must know each package, so a new
dependency cannot be missed. The schema of CycloneDX validates the file.
"""
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import uuid

FOR_LIBRARY = "needed by programs that link libddprun-dev"
# A pattern of packages -> (name, license, use).
PARTS = [
    (r"libboost[\w-]*1\.\d+-dev", ("Boost", "BSL-1.0", "compiled in")),
    (r"libcli11-dev", ("CLI11", "BSD-3-Clause", "compiled in")),
    (r"nlohmann-json3-dev", ("nlohmann_json", "MIT", "compiled in")),
    (r"lib(std.*|gcc)-\d+-dev",
     ("GCC run-time", "GPL-3.0-or-later WITH GCC-exception-3.1", "compiled in")),
    (r"libssl-dev", ("OpenSSL", "Apache-2.0", "linked")),  # by ddprun-ckpt
    (r"libc6-dev|linux-libc-dev", ("glibc", "LGPL-2.1-or-later", "linked")),
    (r"libhwloc-dev", ("hwloc", "BSD-3-Clause", "loaded if there")),
    (r"libtorch", ("LibTorch", "BSD-3-Clause", FOR_LIBRARY)),
    (r"(lib)?nccl(-dev)?", ("NCCL", "LicenseRef-NVIDIA", FOR_LIBRARY)),
    (r"(nvidia-)?cuda.*", ("CUDA run-time", "LicenseRef-NVIDIA", FOR_LIBRARY)),
]
REQUIRED = ("compiled in", "linked")  # the programs do not run without these
# Loaded if there, without a header at compile time.
LOADED = [("munge", "LGPL-3.0-or-later"), ("NVML", "LicenseRef-NVIDIA")]
# A package -> the variables of CMake that hold its folders of headers, and headers of the first
# one that define its version.
FOLDERS = {
    "libtorch": (["LibTorch_INCLUDE_DIR"], ["torch/headeronly/version.h",
                                            "torch/csrc/api/include/torch/version.h"]),
    "nccl": (["NCCL_INCLUDE_DIR"], ["nccl.h"]),
    "cuda": (["CUDART_INCLUDE_DIR", "CUDA_CRT_INCLUDE_DIR", "CUDA_CCCL_INCLUDE_DIR"],
             ["cuda_runtime_api.h"]),
}
RUNTIME = ("libstdc++.a", "libgcc.a", "libgcc_eh.a")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files_of(build):
    """Returns the files that were compiled or linked."""
    recorded = output_of("ninja", "-C", build, "-t", "deps")
    files = set(re.findall(r"^    (\S+)", recorded, re.M))
    commands = output_of("ninja", "-C", build, "-t", "commands", "ddprun_installed")
    files |= set(re.findall(r"(?<=\s)(/\S+\.a)(?=\s)", commands))
    compiler = re.search(r"^(?:\S*ccache )?(\S*(?:c|g)\+\+\S*) ",
                         re.sub(r"^.*? (?=\S*\+\+ )", "", commands), re.M)[1]
    files |= {output_of(compiler, f"-print-file-name={name}").strip() for name in RUNTIME}
    return {(build / file).resolve() for file in files}


def version_in(folder, headers):
    """Returns the version that the first header there is defines."""
    text = next((folder / header).read_text() for header in headers if (folder / header).exists())
    if whole := re.search(r"define CUDART_VERSION +(\d+)", text):
        return f"{int(whole[1]) // 1000}.{int(whole[1]) % 1000 // 10}"
    return ".".join(re.search(rf"define \w+_{part} +(\d+)", text)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


def packages_of(build, files):
    """Returns {package: version}: of FOLDERS, and Debian's for other files outside the tree."""
    cache = dict(re.findall(r"^(\w+):\w+=(/.*)$", (build / "CMakeCache.txt").read_text(), re.M))
    packages = {}
    for package, (variables, headers) in FOLDERS.items():
        folders = [pathlib.Path(cache[name]).resolve() for name in variables
                   if cache.get(name, "/usr/include") != "/usr/include"]
        of_package = {file for file in files for folder in folders if file.is_relative_to(folder)}
        if of_package:
            packages[package] = version_in(folders[0], headers)
            files = files - of_package
    tree = build.parent.parent.resolve()  # of the sources
    system = sorted(str(file) for file in files if not file.is_relative_to(tree))
    found = subprocess.run(["dpkg-query", "--search", *system], capture_output=True, text=True,
                           check=False)
    if found.returncode != 0:
        sys.exit(f"sbom: the build uses a file of no package: {found.stderr.splitlines()[0]}")
    for line in found.stdout.splitlines():
        package = line.split(": ")[0]
        architecture = ":" + package.split(":")[1] if ":" in package else ""
        package = package.split(":")[0]
        if package not in packages:
            packages[package] = output_of("dpkg-query", "-W", "-f", "${Version}",
                                          package + architecture)
    return packages


def component(name, license_name, use):
    return {"type": "library", "bom-ref": name, "name": name,
            "scope": "required" if use in REQUIRED else "optional",
            "licenses": [{"expression": license_name}],
            "properties": [{"name": "ddprun:use", "value": use}]}


def components_of(packages):
    system = dict(line.split("=", 1) for line in
                  pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    components = {}
    for package, version in sorted(packages.items()):
        part = next((part for pattern, part in PARTS if re.fullmatch(pattern, package)), None)
        if not part:
            sys.exit(f"sbom: the build uses {package}, which PARTS in {__file__} does not know: "
                     "add its license")
        kind = "generic" if package in FOLDERS else f"deb/{system['ID'].strip(chr(34))}"
        name, license_name, use = part
        components.setdefault(name, component(name, license_name, use) | {
            "version": re.sub(r"^\d+:", "", version), "purl": f"pkg:{kind}/{package}@{version}"})
    for name, license_name in LOADED:
        components[name] = component(name, license_name, "loaded if there")
    return list(components.values())


def validate(text):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong:
        sys.exit(f"sbom: it does not fit CycloneDX 1.6: {wrong}")


def main():
    build, version, archive, epoch, target = sys.argv[1:]
    digest = hashlib.sha256(pathlib.Path(archive).read_bytes()).hexdigest()
    build = pathlib.Path(build)
    components = components_of(packages_of(build, files_of(build)))
    text = json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(
                int(epoch), datetime.timezone.utc).isoformat().replace("+00:00", "Z"),
            "component": {"type": "application", "bom-ref": "ddprun", "name": "ddprun",
                          "version": version, "licenses": [{"expression": "BSD-3-Clause"}],
                          "hashes": [{"alg": "SHA-256", "content": digest}]}},
        "components": components,
        "dependencies": [
            {"ref": "ddprun", "dependsOn": [component["bom-ref"] for component in components]}],
    }, indent=2)
    validate(text)
    pathlib.Path(target).write_text(text + "\n")


main()
