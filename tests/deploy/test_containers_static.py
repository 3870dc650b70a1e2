"""deploy/Dockerfile, .dockerignore and compose.yaml, without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig
from pagewire.cli.healthcheck import HealthcheckConfig
from pagewire.kit.config import load_config
from tests.deploy import container_engine
from tests.deploy.container_engine import (
    COMPILER_IMAGE,
    PYTHON_IMAGE,
    ROOT,
    compose_command,
    run,
)
from tests.deploy.dockerfile import Stage, read_dockerfile, with_bases

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
HEADER, STAGES = read_dockerfile(DOCKERFILE)
FOLDERS = {
    "gateway": ["gateway"],
    "tokenizer": ["tokenizer_svc"],
    "scheduler": ["scheduler_svc"],
    "worker-sim": ["worker_svc"],
    "worker": ["worker_svc"],
    "all": ["gateway", "tokenizer_svc", "scheduler_svc", "worker_svc"],
}
SERVICES = {"gateway", "scheduler", "worker", "tokenizer", "worker-gpu"}
MONITORING = {"prometheus", "grafana"}
# What builders without BuildKit refuse, or take for something else.
BUILDKIT_ONLY = [
    r"^#\s*syntax\s*=",
    r"^RUN\s+--",
    r"^(COPY|ADD)\s+.*--(link|chmod|parents|exclude|checksum)\b",
    r"<<-?[\"']?\w",
    r"--start-interval",
    r"^FROM\s+--platform=\$(BUILD|TARGET)PLATFORM",
    r"\$\{?(TARGET|BUILD)(PLATFORM|ARCH|OS)\b",
]


@pytest.mark.parametrize("pattern", BUILDKIT_ONLY)
def test_no_builder_is_left_out(pattern: str) -> None:
    assert re.findall(pattern, DOCKERFILE.read_text(), re.MULTILINE) == []


def test_every_build_argument_has_a_default_that_works() -> None:
    arguments = {each.text.partition("=")[0] for each in HEADER}
    assert arguments == {"PYTHON_IMAGE", "COMPILER_IMAGE"}
    for stage in STAGES.values():
        assert all("=" in argument.text for argument in stage.all("ARG")), stage.name
        used = re.findall(r"\$\{(\w+)\}", stage.base)
        assert set(used) <= arguments


def test_the_base_images_are_those_that_tests_ask_for() -> None:
    defaults = dict(each.text.split("=", 1) for each in HEADER)
    assert defaults == {"PYTHON_IMAGE": PYTHON_IMAGE, "COMPILER_IMAGE": COMPILER_IMAGE}


@pytest.mark.parametrize(
    ("here", "pulled", "is_skipped"), [(0, 1, False), (1, 0, False), (1, 1, True)]
)
def test_an_engine_without_a_base_image_is_none(
    monkeypatch: pytest.MonkeyPatch, here: int, pulled: int, is_skipped: bool
) -> None:
    def answer(verb: str, *_: str, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], here if verb == "image" else pulled, "", "no route")

    monkeypatch.setattr(container_engine, "_docker", answer)
    if not is_skipped:
        container_engine.require_images(PYTHON_IMAGE)
        return
    with pytest.raises(pytest.skip.Exception, match=f"NOT tested.* no {PYTHON_IMAGE}: no route"):
        container_engine.require_images(PYTHON_IMAGE)


@pytest.mark.parametrize(
    ("machine", "kernels", "is_built"),
    [("x86_64", "required", False), ("x86_64", "optional", True), ("aarch64", "required", True)],
)
def test_a_worker_without_kernels_is_built_where_it_is_asked_for_or_there_are_none(
    tmp_path: Path, machine: str, kernels: str, is_built: bool
) -> None:
    """As the builder runs it, on a processor of this kind, with a compiler that fails."""
    (line,) = STAGES["kernels"].all("RUN")
    (default,) = [a.text for a in STAGES["kernels"].all("ARG")]
    assert default == "KERNELS=required"
    (tmp_path / "worker_svc").mkdir()
    (tmp_path / "worker_svc" / "__init__.py").touch()
    ignored = shutil.ignore_patterns("*.so", "__pycache__", ".build-*")
    shutil.copytree(ROOT / "worker_svc" / "cpu", tmp_path / "worker_svc" / "cpu", ignore=ignored)
    pretence = f"import platform\nplatform.machine = lambda: {machine!r}\n"
    (tmp_path / "sitecustomize.py").write_text(pretence)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "CXX": "false", "KERNELS": kernels, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", line.text],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CPU kernels are not built" in done.stderr
    assert (done.returncode == 0) is is_built, done.stderr
    assert ("--build-arg KERNELS=optional" in done.stderr) is not is_built


@pytest.mark.parametrize(("extras", "what"), [("", "build"), ("otlp", "build[otlp]")])
def test_images_get_the_extras_that_are_asked_for(tmp_path: Path, extras: str, what: str) -> None:
    """As the builder runs it, with an installer that says what it is asked for."""
    (line,) = STAGES["packages"].all("RUN")
    folder, installer = tmp_path / "build", tmp_path / "opt" / "installer" / "bin" / "pip"
    folder.mkdir()
    script = (ROOT / "deploy" / "install.sh").read_text()
    for path in ("/opt", "/build"):
        script = script.replace(f"{path}/", f"{tmp_path}{path}/")
    script = script.replace('"/build', f'"{folder}')
    (folder / "install.sh").write_text(script)
    for file, does in ((installer, 'echo "$@"'), (tmp_path / "bin" / "python", "")):
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "EXTRAS": extras}
    command = ["sh", "-c", line.text.replace("/build", str(folder))]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[-1] == f"{tmp_path}/{what}"


@pytest.mark.parametrize("target", FOLDERS)
def test_an_image_has_its_own_folders(target: str) -> None:
    copied = {
        each.text.split()[0].rstrip("/")
        for each in STAGES[f"{target}-build"].all("COPY")
        if "--from" not in each.text
    }
    assert copied == {"pagewire", *FOLDERS[target]}


@pytest.mark.parametrize("target", FOLDERS)
def test_an_image_needs_neither_root_nor_shell(target: str) -> None:
    instructions = with_bases(STAGES[target], STAGES)
    last = {each.keyword: each for each in instructions}
    assert last["USER"].text == "10001:10001"
    assert last["STOPSIGNAL"].text == "SIGTERM"
    assert last["ENTRYPOINT"].exec_form()
    labels = " ".join(each.text for each in instructions if each.keyword == "LABEL")
    for name in ("title", "description", "version", "revision", "licenses", "vendor"):
        assert f"org.opencontainers.image.{name}=" in labels


@pytest.mark.parametrize("target", FOLDERS)
def test_a_health_check_asks_a_port_of_its_image(target: str) -> None:
    stage = STAGES[target]
    (check,) = stage.all("HEALTHCHECK")
    command = check.exec_form()
    assert command is not None and command[:2] == ["pagewire", "healthcheck"]
    config = load_config(HealthcheckConfig, prog="test", argv=command[2:], env={})
    if target == "gateway":
        # Its public port may have a certificate of another authority than the probe's.
        assert config.target == GatewayConfig().admin_listen
    else:
        assert config.target.rpartition(":")[2] in _exposed(stage)
    service = "gateway" if target == "all" else target.removesuffix("-sim")
    assert config.service == service


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(
        each.text == f"VERSION={project['version']}" for each in STAGES["runtime"].all("ARG")
    )


def test_builds_get_what_they_copy_and_little_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_through = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        Path(source.replace("${WHEELS}", "deploy/wheels"))
        for stage in STAGES.values()
        for each in stage.all("COPY")
        if "--from" not in each.text
        for source in each.text.split()[:-1]
    }
    assert all(any(_is_in(path, Path(name)) for name in let_through) for path in copied)
    assert all(any(_is_in(path, Path(name)) for path in copied) for name in let_through)


@pytest.fixture(scope="module")
def services(composed: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Our own ones, those of all profiles."""
    return {name: each for name, each in composed.items() if name not in MONITORING}


@pytest.fixture(scope="module")
def composed() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml, as Compose understands them, those of all profiles."""
    file = f"--file={ROOT / 'compose.yaml'}"
    profiles = ["--profile", "*"]
    done = run([*compose_command(), file, *profiles, "config", "--format=json"], cwd=ROOT)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return found


def test_compose_has_the_four_services(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == SERVICES
    for name, service in services.items():
        assert service["build"]["target"] in STAGES, name
        given = set(service["build"].get("args", {}))
        known = {each.text.partition("=")[0] for s in STAGES.values() for each in s.all("ARG")}
        assert given <= known, name


def test_services_may_do_little_and_come_back(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped" and service["tmpfs"], name


def test_services_have_more_time_to_end_than_they_take_to_drain(
    services: dict[str, dict[str, Any]],
) -> None:
    for name, service in services.items():
        grace_s = float(service["stop_grace_period"].removesuffix("s"))
        drain_s = float(service["environment"]["PAGEWIRE_DRAIN_TIMEOUT"])
        assert grace_s > drain_s + 5, name


def test_the_front_drains_before_the_rear(services: dict[str, dict[str, Any]]) -> None:
    order = {name: set(service.get("depends_on", {})) for name, service in services.items()}
    assert order["gateway"] == {"scheduler", "tokenizer"}
    assert order["scheduler"] == {"worker", "tokenizer"}
    for name in ("gateway", "scheduler"):
        conditions = {each["condition"] for each in services[name]["depends_on"].values()}
        assert conditions == {"service_healthy"}


def test_only_the_gateway_is_published_and_only_on_this_machine(
    services: dict[str, dict[str, Any]],
) -> None:
    published = {name: service.get("ports", []) for name, service in services.items()}
    assert [name for name, ports in published.items() if ports] == ["gateway"]
    assert {port["host_ip"] for port in published["gateway"]} == {"127.0.0.1"}


def test_names_in_addresses_are_those_of_services(services: dict[str, dict[str, Any]]) -> None:
    addresses = re.findall(r"dns:///([\w-]+):(\d+)", json.dumps(services))
    assert addresses
    for name, port in addresses:
        assert port in _exposed(STAGES[name]), name


def test_the_device_is_asked_for_by_its_own_profile_only(
    services: dict[str, dict[str, Any]],
) -> None:
    by_profile = {name: service.get("profiles", []) for name, service in services.items()}
    assert {name for name, profiles in by_profile.items() if profiles} == {"worker-gpu"}
    worker = services["worker-gpu"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    assert worker["networks"]["default"]["aliases"] == ["worker"]
    assert "deploy" not in services["worker"]


@pytest.mark.parametrize(
    ("profile", "more"),
    [((), set()), (("gpu",), {"worker-gpu"}), (("monitoring",), MONITORING)],
    ids=["none", "gpu", "monitoring"],
)
def test_a_profile_is_valid_and_adds_its_services(profile: tuple[str, ...], more: set[str]) -> None:
    flags = [f"--profile={name}" for name in profile]
    command = [*compose_command(), f"--file={ROOT / 'compose.yaml'}", *flags, "config"]
    run([*command, "--quiet"], cwd=ROOT)
    found = set(run([*command, "--services"], cwd=ROOT).stdout.split())
    assert found == (SERVICES - {"worker-gpu"}) | more


@pytest.mark.parametrize("name", sorted(MONITORING))
def test_monitoring_is_for_this_machine_and_may_do_little(
    composed: dict[str, dict[str, Any]], name: str
) -> None:
    service = composed[name]
    assert service["profiles"] == ["monitoring"]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}
    assert ":latest" not in service["image"] and ":" in service["image"]
    binds = [Path(each["source"]) for each in service["volumes"] if each["type"] == "bind"]
    assert binds
    assert all(path.exists() for path in binds)


def _exposed(stage: Stage) -> list[str]:
    return [port for each in stage.all("EXPOSE") for port in each.text.split()]


def _is_in(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
