#!/usr/bin/env python3
"""Writes the software bill of materials: sbom.py BUILD_DIR VERSION ARCHIVE EPOCH FILE

CycloneDX 1.6 in JSON. What is compiled in comes from the build itself: each header that ninja
recorded, and the static libraries of the linker's commands, by the Debian package that owns the
file. A package that PARTS does not know is an error, so a new dependency cannot be missed.
The file is validated by the schema of CycloneDX.
"""
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import uuid

# A pattern of packages -> (name, license, scope). A required part is compiled in. An optional one
# is loaded at run time if it is there, or must be there already (the C library, LibTorch).
PARTS = [
    (r"libboost[\w-]*1\.\d+-dev", ("Boost", "BSL-1.0", "required")),
    (r"libcli11-dev", ("CLI11", "BSD-3-Clause", "required")),
    (r"nlohmann-json3-dev", ("nlohmann_json", "MIT", "required")),
    (r"lib(std.*|gcc)-\d+-dev",
     ("GCC run-time", "GPL-3.0-or-later WITH GCC-exception-3.1", "required")),
    (r"libssl-dev", ("OpenSSL", "Apache-2.0", "optional")),
    (r"libhwloc-dev", ("hwloc", "BSD-3-Clause", "optional")),
    (r"libc6-dev|linux-libc-dev", ("glibc", "LGPL-2.1-or-later", "optional")),
    (r"torch", ("LibTorch", "BSD-3-Clause", "optional")),
    (r"nvidia-.*", ("NCCL and CUDA run-time", "LicenseRef-NVIDIA", "optional")),
]
RUNTIME = ("libstdc++.a", "libgcc.a", "libgcc_eh.a")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files_of(build):
    """Returns the files outside the tree that were compiled or linked."""
    recorded = output_of("ninja", "-C", build, "-t", "deps")
    files = set(re.findall(r"^    (\S+)", recorded, re.M))
    commands = output_of("ninja", "-C", build, "-t", "commands", "ddprun_installed")
    files |= set(re.findall(r"(?<=\s)(/\S+\.a)(?=\s)", commands))
    compiler = re.search(r"^(?:\S*ccache )?(\S*(?:c|g)\+\+\S*) ",
                         re.sub(r"^.*? (?=\S*\+\+ )", "", commands), re.M)[1]
    files |= {output_of(compiler, f"-print-file-name={name}").strip() for name in RUNTIME}
    files = {(build / file).resolve() for file in files}
    tree = build.parent.parent.resolve()  # of the sources
    return {str(file) for file in files
            if not file.is_relative_to(tree) or "site-packages" in file.parts}


def packages_of(files):
    """Returns {package: version}: those of Debian, and wheels by their folder."""
    packages = {}
    system = []
    for file in sorted(files):
        match = re.match(r"(.*/site-packages)/(torch|nvidia)/", file)
        if not match:
            system.append(file)
            continue
        pattern = "torch-*.dist-info" if match[2] == "torch" else "nvidia_nccl*.dist-info"
        for info in pathlib.Path(match[1]).glob(pattern):
            name, version = info.name.removesuffix(".dist-info").rsplit("-", 1)
            packages[name.replace("_", "-")] = version
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


def components_of(packages):
    system = dict(line.split("=", 1) for line in
                  pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    components = {}
    for package, version in sorted(packages.items()):
        part = next((part for pattern, part in PARTS if re.fullmatch(pattern, package)), None)
        if not part:
            sys.exit(f"sbom: the build uses {package}, which PARTS in {__file__} does not know: "
                     "add its license")
        if re.fullmatch(r"torch|nvidia-.*", package):
            purl = f"pkg:pypi/{package}@{version}"
        else:
            purl = f"pkg:deb/{system['ID'].strip(chr(34))}/{package}@{version}"
        name, license_name, scope = part
        components.setdefault(name, {
            "type": "library", "bom-ref": name, "name": name,
            "version": re.sub(r"^\d+:", "", version), "scope": scope,
            "licenses": [{"expression": license_name}], "purl": purl})
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
    components = components_of(packages_of(files_of(pathlib.Path(build))))
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
