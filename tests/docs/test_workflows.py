"""The steps of the workflows, run as scripts: the quick ones always, those that install at full scale (`make test-full`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import bestfirst
from scale import FULL

yaml = pytest.importorskip("yaml", reason="workflows are read by PyYAML")
ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
STEPS = [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]
COMMANDS = [step["run"] for step in STEPS if "run" in step]
REPOSITORY = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "some/fork"}
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def run(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as the runner does: in a shell that ends at the first failure."""
    env = {**os.environ, **environment}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(bash, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def commands(workflow: str, job: str) -> list[str]:
    return [step["run"] for step in WORKFLOWS[workflow]["jobs"][job]["steps"] if "run" in step]


def test_actions_have_a_version_and_workflows_declare_permissions():
    assert [step["uses"] for step in STEPS if "uses" in step and not re.search(r"@(v\d+|release/v\d+)$", step["uses"])] == []
    assert all("permissions" in flow for flow in WORKFLOWS.values())


def test_every_supported_python_and_system_is_in_the_matrix():
    matrix = WORKFLOWS["tests"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'"Programming Language :: Python :: ([\d.]+)"', PROJECT)
    systems = {*matrix["os"], *(each["os"] for each in matrix["include"])}
    assert systems == {"ubuntu-latest", "macos-latest", "windows-latest"}


def test_extras_and_tests_named_in_steps_exist():
    extras = {extra for command in COMMANDS for group in re.findall(r'"\.\[([\w,]+)\]"', command) for extra in group.split(",")}
    known = set(re.findall(r"^(\w+) = \[", PROJECT.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    assert extras <= known
    paths = [path for command in COMMANDS for path in re.findall(r"\btests/\S+", command)]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_style_step_passes():
    (step,) = [command for command in COMMANDS if command.startswith("ruff")]
    done = run(step.replace(" && mypy", ""), ROOT, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr  # mypy takes long, and `make lint` has it


@pytest.mark.parametrize(("tag", "code"), [(f"v{bestfirst.__version__}", 0), ("v0", 1), (bestfirst.__version__, 1)])
def test_only_the_tag_of_this_version_is_released(tag: str, code: int):
    (step,) = [command for command in COMMANDS if "GITHUB_REF_NAME" in command]
    assert run(step, ROOT, GITHUB_REF_NAME=tag).returncode == code


def test_a_release_links_to_the_repository_it_is_made_in(tmp_path: Path):
    (step,) = [command for command in COMMANDS if "GITHUB_REPOSITORY" in command]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert run(step, tmp_path, **REPOSITORY).returncode == 0
    urls = (tmp_path / "pyproject.toml").read_text(encoding="utf-8").partition("[project.urls]\n")[2].partition("\n\n")[0]
    assert urls.splitlines()[0] == 'Source = "https://example.org/some/fork"'
    assert [line.split(" = ")[0] for line in urls.splitlines()] == ["Source", "Issues", "Changelog", "Paper"]


@pytest.mark.skipif(not FULL, reason="installs what the release and the site need: BESTFIRST_TEST_SCALE=full")
@pytest.mark.parametrize(("workflow", "job"), [("release", "build"), ("docs", "site")])
def test_all_steps_pass_in_a_clean_copy(workflow: str, job: str, tmp_path: Path):
    copy, home = tmp_path / "copy", tmp_path / "python"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    venv.create(home, with_pip=True)
    clean = {"PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "", "VIRTUAL_ENV": ""}
    for command in commands(workflow, job):
        done = run(command, copy, GITHUB_REF_NAME=f"v{bestfirst.__version__}", **clean, **REPOSITORY)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
