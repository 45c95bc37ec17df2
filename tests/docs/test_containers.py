"""The Dockerfile's steps, run as a script where there is no container runtime; the files that compose.yaml mounts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from scale import FULL

yaml = pytest.importorskip("yaml", reason="compose.yaml is read by PyYAML")
ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^(FROM|COPY|RUN|WORKDIR|ENV|USER|HEALTHCHECK|ENTRYPOINT|CMD|EXPOSE) (.*)$", re.MULTILINE)


def stages() -> dict[str, list[tuple[str, str]]]:
    """The steps of each stage, after those of the stages that it builds on."""
    found: dict[str, list[tuple[str, str]]] = {}
    here: list[tuple[str, str]] = []
    for step, rest in STEP.findall((ROOT / "Dockerfile").read_text(encoding="utf-8")):
        if step == "FROM":
            base, _, name = rest.partition(" AS ")
            here = found[name] = list(found.get(base, []))
        else:
            here.append((step, rest))
    return found


def test_images_run_as_an_unprivileged_user_and_have_a_health_check():
    for name in ("cpu", "cuda"):
        steps = dict(stages()[name])
        assert steps["USER"] == "bestfirst"
        assert "/health" in steps["HEALTHCHECK"]
        assert json.loads(steps["ENTRYPOINT"]) == ["bestfirst"]
        assert json.loads(steps["CMD"])[0] == "serve"


def test_the_steps_of_the_dockerfile_build_a_healthy_server(tmp_path: Path):
    """In a folder in place of /, with dependencies borrowed from this environment (full scale: installed)."""
    source, home = tmp_path / "source", tmp_path / "opt" / "bestfirst"
    source.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if not FULL:
        env |= {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # for pip, 0 in the latter means --no-build-isolation
    for step, rest in stages()["build"]:
        if step == "COPY":
            *names, target = shlex.split(rest)
            for name in names:
                copied = source / (name if target == "./" else target)
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, copied, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(ROOT / name, copied)
        elif step == "RUN":
            command = rest.replace("/opt/bestfirst", str(home)).replace("python -m venv", f"{sys.executable} -m venv")
            done = subprocess.run(command, shell=True, cwd=source, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
            if not FULL:
                for old in site.glob("setuptools*"):  # which a new environment of Python 3.11 contains
                    shutil.rmtree(old)
                (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    steps = dict(stages()["cpu"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env["PATH"] = f"{home / 'bin'}{os.pathsep}{env['PATH']}"
    serve = [str(home / "bin" / "bestfirst"), *json.loads(steps["CMD"]), "--port", port]
    check = [part.replace("8000", port) for part in json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])]
    with subprocess.Popen(serve, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as server:
        try:
            for _ in range(240):
                assert server.poll() is None, server.stderr.read()
                if subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0:
                    break
                time.sleep(0.5)
            else:
                pytest.fail("it is not well after two minutes")
        finally:
            server.terminate()
            server.wait(60)


def test_compose_mounts_existing_files_and_the_dashboard_queries_existing_metrics():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    assert len(mounted) == 4
    assert [path for path in mounted if not (ROOT / path).is_file()] == []
    for path in (ROOT / "deploy").rglob("*.yml"):
        yaml.safe_load(path.read_text(encoding="utf-8"))
    pytest.importorskip("prometheus_client")
    from types import SimpleNamespace

    from bestfirst import Stats
    from bestfirst.serve.metrics import Metrics

    queue = SimpleNamespace(queued=0, limits=SimpleNamespace(max_queue=1), engine=SimpleNamespace(in_flight=0, stats=Stats()))
    text = Metrics(queue, frozenset()).read().decode()
    known = {re.sub(r"_total$", "", name) for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    board = json.loads((ROOT / "deploy" / "grafana" / "bestfirst.json").read_text(encoding="utf-8"))
    asked = {name for panel in board["panels"] for t in panel["targets"] for name in re.findall(r"bestfirst_\w+", t["expr"])}
    assert {re.sub(r"_(total|bucket)$", "", name) for name in asked} <= known
    assert len(board["panels"]) == 8


def test_workflows_templates_and_citation_can_be_parsed():
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) == 6
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    import bestfirst

    assert citation["version"] == bestfirst.__version__
