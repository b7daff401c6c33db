"""Names, paths, and saving that leaves the old file or the new one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deepaa.ops.space import CIFAR, IMAGENET, Operation
from deepaa.policy import (
    SCHEDULE_EPOCHS,
    PolicyFileError,
    compared_policy,
    dumps,
    fitted_schedule,
    load,
)
from deepaa.policy.format import save_policy
from deepaa.policy.load import load_policy, parse_policy_ref, policy_names, shipped_policies
from deepaa.policy.policy import Policy

POLICY = Policy.trivial(CIFAR, 2)


# Names


def test_every_name_loads() -> None:
    names = policy_names()
    assert len(set(names)) == len(names)
    for name in names:
        assert load_policy(name).depth >= 1


def test_generated_policies() -> None:
    # as the compared methods have them: the space's own crop and cutout differ
    crop, flip = Operation("crop", options={"fill": 0}), Operation("flip")
    cutout = Operation("cutout", options={"central": "pixel"})
    expected = {
        "identity": Policy.identity(),
        "none": Policy.identity(),
        "uniform": Policy.uniform(CIFAR, 2),
        "deepta": Policy.trivial(CIFAR, 6),
        "deepta-imagenet": Policy.trivial(IMAGENET, 5),
        "crop-flip": Policy.always(crop, flip),
        "crop-flip-cutout": Policy.always(crop, flip, cutout),
    }
    assert set(expected) <= set(policy_names())
    for name, policy in expected.items():
        assert load_policy(name).equals(policy)


def test_shipped_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    save_policy(POLICY, tmp_path / "zeta.json")
    save_policy(Policy.identity(), tmp_path / "alpha.json")
    monkeypatch.setattr(load, "_SHIPPED", tmp_path)
    assert policy_names()[:3] == ("alpha", "zeta", "identity")
    assert load_policy("zeta").equals(POLICY)


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_shipped_policies_say_where_they_come_from(name: str) -> None:
    policy = load_policy(name)
    for entry in ("command", "seed", "data", "hardware", "code", "cost"):
        assert policy.info[entry], entry
    assert policy.info["command"].startswith(f"deepaa search --data {name} ")
    assert policy.equals(policy.symmetric())


def test_a_name_is_a_name_whatever_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_policy(Policy.identity(), "uniform")
    assert load_policy("uniform").equals(Policy.uniform(CIFAR, 2))
    assert load_policy(Path("uniform")).equals(Policy.identity())
    assert load_policy("./uniform").equals(Policy.identity())
    save_policy(Policy.identity(), "deepta:2")
    assert load_policy("deepta:2").equals(Policy.trivial(CIFAR, 2))
    assert load_policy("./deepta:2").equals(Policy.identity())


def test_a_reference_is_taken_apart() -> None:
    ref = parse_policy_ref("randaugment:3,space=imagenet")
    assert (ref.name, ref.arguments) == ("randaugment", {"n": 3, "space": "imagenet"})
    assert (ref.path, ref.first_layer, ref.is_name) == (None, False, True)
    ref = parse_policy_ref("deepaa-simple:pba:logs/x.txt,over=9")
    assert (ref.name, ref.arguments, ref.path) == ("pba", {"over": 9}, Path("logs/x.txt"))
    assert ref.first_layer
    assert ref.label == "deepaa-simple:pba:x.txt,over=9"
    for name in ("none", "deepta:4", "cifar10", "deepaa-simple:x.json", "pba:x.txt"):
        assert parse_policy_ref(name).is_name
    for path in ("deepta.json", "./deepta", "x/deepta", Path("deepta")):
        assert not parse_policy_ref(path).is_name
    for name in ("b/policy.json", "b/found.json"):
        assert parse_policy_ref(f"a/{name}").label == name
    with pytest.raises(PolicyFileError, match="deepaa-simple is given twice"):
        parse_policy_ref("deepaa-simple:deepaa-simple:deepta")


@pytest.mark.parametrize(
    ("source", "hint"),
    [("deepata", "did you mean 'deepta'"), ("Crop-Flip", "'crop-flip'"), ("zzzz", "names: ")],
)
def test_an_unknown_name_gets_a_hint(source: str, hint: str) -> None:
    with pytest.raises(PolicyFileError, match=hint) as caught:
        load_policy(source)
    assert str(caught.value).startswith(f"{source}: no such file, and no policy has this name; ")
    assert all(name in str(caught.value) for name in policy_names())


# Files that are none


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path / "no" / "no.json"):
        with pytest.raises(PolicyFileError, match=f"^{path}: no such file$"):
            load_policy(path)
    (tmp_path / "file").touch()
    with pytest.raises(PolicyFileError, match="no such file"):
        load_policy(tmp_path / "file" / "below.json")
    with pytest.raises(PolicyFileError, match="no such file"):
        load_policy("nul\0character")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"a folder without policy\.json"):
        load_policy(tmp_path)


def test_name_too_long() -> None:
    with pytest.raises(PolicyFileError, match="cannot be read: File name too long"):
        load_policy("x" * 300)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyFileError, match="a pipe, expected a policy file"):
        load_policy(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_unreadable(tmp_path: Path) -> None:
    save_policy(POLICY, tmp_path / "p.json")
    (tmp_path / "p.json").chmod(0)
    with pytest.raises(PolicyFileError, match="cannot be read: Permission denied"):
        load_policy(tmp_path / "p.json")


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(PolicyFileError, match="16,777,217 bytes; at most 16,777,216 are read"):
        load_policy(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"format": "\xff"}', "byte 12: not UTF-8 text"),
        ("{}".encode("utf-16"), "byte 0: not UTF-8 text"),
        (b"\xef\xbb\xbf{}", "Unexpected UTF-8 BOM"),
        (b"\x89PNG\r\n\x1a\n", "byte 0: not UTF-8 text"),
    ],
)
def test_not_text(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(data)
    with pytest.raises(PolicyFileError, match=message):
        load_policy(path)


@pytest.mark.parametrize("source", [3, None, POLICY, {"layers": []}])
def test_wrong_type(source: object) -> None:
    with pytest.raises(TypeError, match="takes a name or a path, got "):
        load_policy(source)  # type: ignore[arg-type]


# Saving


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "ünïcode name.json"
    POLICY.save(path)
    assert path.read_bytes() == dumps(POLICY).encode()
    assert load_policy(path).equals(POLICY)
    assert load_policy(str(path)).equals(POLICY)
    save_policy(Policy.identity(), str(path))
    assert load_policy(path).equals(Policy.identity())
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save_policy(POLICY, tmp_path / "p.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p.json").stat().st_mode) == 0o644


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("target.json")
    save_policy(POLICY, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_policy(tmp_path / "target.json").equals(POLICY)


def test_saving_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"no/p\.json: the folder .*no does not exist"):
        save_policy(POLICY, tmp_path / "no" / "p.json")
    with pytest.raises(PolicyFileError, match="a folder, expected the path of a file"):
        save_policy(POLICY, tmp_path)


def test_a_name_that_promises_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"written as JSON; give it the ending \.json"):
        save_policy(POLICY, tmp_path / "policy.npz")


def test_a_policy_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_policy(POLICY, path)
    with pytest.raises(ValueError, match="info"):
        save_policy(Policy(CIFAR, info={"n": "\ud800"}), path)
    assert load_policy(path).equals(POLICY)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a limit on file sizes")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    # the process may write 1,000 bytes per file, so the second policy does not fit
    path = tmp_path / "p.json"
    save_policy(Policy.identity(), path)
    code = (
        "import resource, signal, sys\n"
        "from deepaa.policy import load_policy\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "policy = load_policy('deepta')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "policy.save(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "OSError" in done.stderr
    assert load_policy(path).equals(Policy.identity())
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_of_a_run_is_its_policy(tmp_path: Path) -> None:
    policy = Policy.trivial(CIFAR, 2)
    (tmp_path / "run").mkdir()
    policy.save(tmp_path / "run/policy.json")
    assert load_policy(tmp_path / "run").equals(policy)
    assert load_policy(str(tmp_path / "run")).equals(policy)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolicyFileError, match=r"a folder without policy\.json"):
        load_policy(tmp_path / "empty")


# Schedules that say how many epochs they are for


def test_a_schedule_is_fitted_to_a_training(tmp_path: Path) -> None:
    layer = Policy.uniform(CIFAR, 1).phases[0].stages
    phases = [(0, layer), (30, layer)]
    plain = Policy(CIFAR, schedule=phases)
    noted = Policy(CIFAR, schedule=phases, info={SCHEDULE_EPOCHS: "60"})
    assert fitted_schedule(plain, 10) is plain
    fitted = fitted_schedule(noted, 10)
    assert [phase.epoch for phase in fitted.phases] == [0, 5]
    assert fitted.info == {SCHEDULE_EPOCHS: "10"}
    path = tmp_path / "policy.json"
    for policy, starts in ((plain, [0, 30]), (noted, [0, 5])):
        policy.save(path)
        assert load_policy(path).equals(policy)
        assert compared_policy(path).equals(policy)
        found = compared_policy(path, epochs=10)
        assert [phase.epoch for phase in found.phases] == starts
    for bad, message in (("sixty", "should be a whole number, got 'sixty'"), ("30", "from 30 to")):
        Policy(CIFAR, schedule=phases, info={SCHEDULE_EPOCHS: bad}).save(path)
        with pytest.raises(PolicyFileError, match=f"^{path}: .*{message}"):
            compared_policy(path, epochs=10)
