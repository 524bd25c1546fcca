"""`evenstep doctor` in environments that bite, each made for real: the finding, and the bite.

Some need root's rights, for file systems, names and networks of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evenstep
from evenstep.tools.doctor import cgroup, limits, software

CHECKS = """
import json
from evenstep.tools.doctor import folders, limits, network, software
checks = (software.encoding, software.torch_build, folders.shared_memory, folders.temporary_folder,
    limits.open_files, limits.tasks, limits.memory, limits.processors, network.loopback,
    network.host_name, network.interface, network.master)
print(json.dumps([found.as_dict() for check in checks for found in check()]))
"""
DOCTOR = ("-m", "evenstep", "doctor", "--json")
CLEAN = ("TMPDIR", "RAY_TMPDIR", "GLOO_SOCKET_IFNAME", "MASTER_ADDR")


def tell(shell: str, *python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs Python after commands of a shell, which may change its environment."""
    own = {name: value for name, value in os.environ.items() if name not in CLEAN}
    return subprocess.run(
        ["sh", "-c", f'{shell} exec "$0" "$@"', sys.executable, *python],
        env={**own, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )


def apart(commands: str) -> str:
    """Commands in namespaces of their own: mounts, network and host name."""
    enter = ["unshare", "-m", "-n", "-u"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("no rights to make namespaces")
    return f'exec {" ".join(enter)} sh -c \'{commands} exec "$0" "$@"\' "$0" "$@";'


def findings(shell: str = "", **environ: str) -> dict[str, tuple[str, str, str]]:
    """By check: level, what was found, and the remedy, of the worst finding."""
    ran = tell(shell, "-c", CHECKS, **environ)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, tuple[str, str, str]] = {}
    for each in json.loads(ran.stdout):
        level = each["level"]
        assert (level == "ok") == (each["remedy"] is None), "every finding has a remedy"
        if level != "ok" or each["check"] not in found:
            found[each["check"]] = level, each["found"], each["remedy"] or ""
    return found


def test_a_sound_machine_runs_the_trial_job() -> None:
    ran = tell("", *DOCTOR)
    assert ran.returncode == 0, ran.stdout
    told = json.loads(ran.stdout)
    assert not told["breaks"]
    assert told["releases"].keys() >= {"python", "torch", "numpy"}
    trial = next(each for each in told["findings"] if each["check"] == "trial job")
    assert trial["found"].startswith("two ranks trained in ")


def test_what_no_other_check_thinks_of_fails_the_trial_job() -> None:
    ran = tell("ulimit -f 2;", "-B", *DOCTOR)  # files of 1 KiB, as anonymous memory is, too
    assert ran.returncode == 1, ran.stdout
    worst = json.loads(ran.stdout)["findings"][0]
    assert (worst["check"], worst["level"]) == ("trial job", "breaks")
    assert "LoaderDiedError: shared memory ran out" in worst["found"]


def test_without_dev_shm_it_exits_with_1_and_runs_no_job() -> None:
    ran = tell(apart("mount -t tmpfs -o ro none /dev/shm; ip link set lo up;"), *DOCTOR)
    assert ran.returncode == 1, ran.stderr
    told = json.loads(ran.stdout)
    assert told["breaks"]
    assert "trial job" not in [each["check"] for each in told["findings"]]
    worst = told["findings"][0]
    assert (worst["check"], worst["level"]) == ("shared memory", "breaks")
    assert "Read-only file system" in worst["found"]
    assert "--shm-size" in worst["remedy"]


@pytest.mark.parametrize(("limit", "level"), [(100, "breaks"), (300, "warning"), (2000, "ok")])
def test_few_open_files_are_found(limit: int, level: str) -> None:
    found = findings(f"ulimit -S -n {limit};")["open files"]
    assert found[0] == level
    assert f"{limit:,} may be open" in found[1]
    assert found[2] == ("" if level == "ok" else "ulimit -n 65536, before the job starts") or (
        "ulimit -n" in found[2]  # a machine whose hard limit is lower
    )


def test_a_host_that_does_not_reach_itself_breaks_every_job() -> None:
    found = findings(apart(""))["loopback"]
    assert found[0] == "breaks"
    assert "ip link set lo up" in found[2]


@pytest.mark.parametrize(
    ("name", "hosts", "said"),
    [
        ("faraway", "10.9.8.7 faraway", "is 10.9.8.7, which is not of this host"),
        ("debian", "127.0.1.1 debian", "is 127.0.1.1"),
        ("nameless", "", "cannot be resolved"),
        ("localhost", "", "tells no host from another"),
        ("node7", "10.9.8.6 node7", ""),
    ],
)
def test_a_name_that_other_hosts_cannot_use_is_found(
    tmp_path: Path, name: str, hosts: str, said: str
) -> None:
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n")
    shell = apart(
        f"hostname {name}; mount --bind {tmp_path}/hosts /etc/hosts; ip link set lo up;"
        "ip link add cable0 type veth peer name cable1; ip addr add 10.9.8.6/24 dev cable0;"
        "ip link set cable0 up; ip link set cable1 up;"
    )
    level, found, remedy = findings(shell)["host name"]
    assert level == ("warning" if said else "ok")
    assert said in found
    if said and name != "localhost":
        assert "set GLOO_SOCKET_IFNAME to the interface between them: " in remedy
        assert "cable0" in remedy
    told = findings(shell, GLOO_SOCKET_IFNAME="cable0")
    assert told["interface"][0] == "ok"
    assert told["host name"][0] == ("warning" if name == "localhost" else "ok")


def test_an_interface_and_a_master_that_are_not_there_break_every_job() -> None:
    found = findings(GLOO_SOCKET_IFNAME="none0", MASTER_ADDR="none.invalid")
    assert found["interface"][0] == found["MASTER_ADDR"][0] == "breaks"
    assert "none0 is not here" in found["interface"][1]
    assert "lo" in found["interface"][2]


BY_FORKSERVER = "import multiprocessing as m; m.get_context('forkserver').Process().start()"
BY_RAY = "import ray; ray.init(include_dashboard=False, num_cpus=1, log_to_driver=False)"


@pytest.mark.parametrize("length", [38, 60, 90])
def test_a_long_temporary_folder_breaks_what_it_is_said_to_break(
    tmp_path: Path, length: int
) -> None:
    base = Path(os.path.realpath("/tmp")) / f"evenstep-long-{os.getpid()}"
    folder = Path(f"{base}{'x' * (length - len(str(base)))}")
    folder.mkdir()
    try:
        found = findings(TMPDIR=str(folder))
        level, said, _ = found["TMPDIR"]
        assert (level == "warning") == (length == 90), said
        fails = tell("", "-c", BY_FORKSERVER, TMPDIR=str(folder)).stderr
        # The latest releases of Python take another folder.
        assert ("AF_UNIX path too long" in fails) == (length == 90) or sys.version_info >= (3, 14)
        if software.installed().get("ray"):
            assert ("Ray's folder" in found) == (length > 38)
        if length == 60 and "Ray's folder" in found:
            assert "cannot exceed 107 bytes" in tell("", "-c", BY_RAY, TMPDIR=str(folder)).stderr
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def test_a_temporary_folder_that_is_missing_or_full_is_found(tmp_path: Path) -> None:
    level, found, _ = findings(TMPDIR=str(tmp_path / "none"))["TMPDIR"]
    assert level == "warning"
    assert "none cannot be written, so /" in found
    small = apart(f"mount -t tmpfs -o size=1m none {tmp_path};")
    level, found, _ = findings(small, TMPDIR=str(tmp_path))["TMPDIR"]
    assert level == "warning"
    assert f"{tmp_path} has 1 MiB left" in found


NO_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_encoding_without_all_characters_is_found_and_stops_no_command() -> None:
    assert findings(LC_ALL="C.UTF-8")["encoding"][0] == "ok"
    level, found, remedy = findings(**NO_UTF8)["encoding"]
    assert level == "warning"
    assert "misread" in found
    assert "LC_ALL=C.UTF-8" in remedy
    simulate = "-m evenstep simulate even --lengths ultrachat --world-size 2 --samples 400"
    ran = tell("", *simulate.split(), **NO_UTF8)  # its table has a mu
    assert ran.returncode == 0, ran.stderr
    assert "planning per sample, ?s" in ran.stdout


@pytest.fixture
def limited() -> Iterator[dict[str, Path]]:
    """Control groups of this test, by kind, of the first version."""
    folders = {
        kind: Path(f"/sys/fs/cgroup/{kind}/evenstep-test-{os.getpid()}")
        for kind in ("memory", "pids", "cpu")
    }
    try:
        for folder in folders.values():
            folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups can be made: {error}")
    yield folders
    for folder in folders.values():
        folder.rmdir()


def test_the_limits_of_a_container_are_found(limited: dict[str, Path]) -> None:
    (limited["memory"] / "memory.limit_in_bytes").write_text(str(1500 << 20))
    (limited["pids"] / "pids.max").write_text("200")
    (limited["cpu"] / "cpu.cfs_quota_us").write_text("50000")
    enter = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in limited.values())
    found = findings(enter)
    assert [found[name][0] for name in ("memory", "tasks", "processors")] == 3 * ["warning"]
    assert "1.5 GiB in this container" in found["memory"][1]
    assert "buffer_bytes" in found["memory"][2]
    assert evenstep.Memory().buffer_bytes == limits.WINDOW_BYTES
    assert found["processors"][1].startswith("0.5 of ")


def test_control_groups_of_the_second_version_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "own").write_text("0::/job/step\n")
    for name, text in {
        "job/memory.max": "4096\n",
        "job/step/memory.max": "max\n",
        "job/step/pids.max": "100\n",
        "job/step/pids.current": "30\n",
        "job/cpu.max": "150000 100000\n",
        "job/step/cpu.max": "max 100000\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")
    assert (cgroup.memory_limit(), cgroup.tasks_left(), cgroup.processors()) == (4096, 70, 1.5)


def test_one_processor_of_several_is_found() -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one")
    first = min(os.sched_getaffinity(0))
    level, found, _ = findings(f'exec taskset -c {first} "$0" "$@";')["processors"]
    assert level == "warning"
    assert found.startswith("1 of ")


def test_a_gpu_that_torch_was_not_built_for_is_found() -> None:
    import torch

    if torch.version.cuda or torch.version.hip:
        pytest.skip("torch is built for one")
    shell = apart(
        "folder=$(mktemp -d); mount -t tmpfs none $folder; mkdir $folder/shm;"
        "cp -a /dev/null /dev/zero /dev/urandom /dev/random $folder; touch $folder/nvidia0;"
        "mount --move $folder /dev; rmdir $folder; ip link set lo up;"
    )
    level, found, remedy = findings(shell)["torch"]
    assert level == "warning"
    assert "the build has no CUDA" in found
    assert "CUDA build" in remedy


@pytest.mark.parametrize(
    ("name", "release", "level"),
    [
        ("torch", "2.4.1", "breaks"),
        ("torch", "2.13.0+cu130", "ok"),
        ("torch", "99.0", "warning"),
        ("numpy", "1.25.2", "breaks"),
        ("python", "3.99.0", "warning"),
        ("trl", "0.1", "warning"),
        ("ray", "99.1.0", "warning"),
    ],
)
def test_releases_outside_the_table_are_found(name: str, release: str, level: str) -> None:
    found: dict[str, Any] = {
        each.check: each.level for each in software.outside_the_table({name: release})
    }
    assert found.get(name, "ok") == level
