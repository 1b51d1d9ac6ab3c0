#!/usr/bin/env python3
"""Checks the alert rules and the queries of the dashboard with Prometheus' own promtool.

argv[1]: the folder of the sources.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PATIENCE = 60  # seconds
SOURCES = pathlib.Path(sys.argv[1])
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=SOURCES / "build")


def promtool(*arguments: str, folder: pathlib.Path | str) -> subprocess.CompletedProcess:
    return subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=PATIENCE)


def check_queries(queries: list[str]) -> subprocess.CompletedProcess:
    """Returns what promtool says of these queries, as rules."""
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rules.json"  # JSON is YAML
        file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
        return promtool("check", "rules", file.name, folder=folder)


def main() -> None:
    if not PROMTOOL:
        needs.skip("there is no promtool: scripts/setup --tests")
    packaging = SOURCES / "packaging"
    done = promtool("test", "rules", "ddprun.rules_test.yml", folder=packaging / "prometheus")
    assert done.returncode == 0, done
    dashboard = json.loads((packaging / "grafana/ddprun.json").read_text())
    queries = [target["expr"].replace("$job", ".*") for panel in dashboard["panels"]
               for target in panel.get("targets", [])]
    assert len(queries) > 5, queries
    done = check_queries(queries)
    assert done.returncode == 0 and f"{len(queries)} rules found" in done.stdout, done
    assert check_queries([*queries, "sum by ("]).returncode != 0, "a wrong query is found"
    print(f"promtool takes the alert rules, and {len(queries)} queries of the dashboard")


main()
