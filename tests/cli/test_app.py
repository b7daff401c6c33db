"""Commands as a user meets them: what they print, what they write, and how they fail."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import contest_files
import numpy as np
import pytest
import torch
import typer
from PIL import Image
from processes import lines_shown, open_terminal, read_terminal

import deepaa
from deepaa.cli import app as cli, doctor
from deepaa.cli.contest import print_use
from deepaa.data import load_images
from deepaa.ops.apply import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR, Space
from deepaa.policy import weaker_draw
from deepaa.policy.load import load_policy, policy_names
from deepaa.policy.policy import Layers, Policy
from deepaa.report.pictures import augmented, grid_layout

COMMANDS = {
    "show": ["--json", "--top", "--epoch", "--operations"],
    "preview": ["--data", "--out", "--draws", "--seed", "--strength", "--size", "--operations"],
    "compare": ["--out", "--samples", "--json", "--data", "--space", "--operations"],
    "convert": ["--to", "--size", "--symmetric", "--force", "--operations"],
    "policies": [],
    "doctor": ["--json"],
    "search": ["--data", "--out", "--resume", "--preset", "--layers", "--exclude", "--contest"],
    "contest": ["--data", "--policy", "--passes", "--target-epochs", "--protect", "--set", "--out"],
    "train": ["--policy", "--data", "--model", "--recipe", "--seeds", "--parallel", "--resume"],
    "report": ["--out", "--results", "--figures", "--format", "--watch"],
    "bench ops": ["--size", "--device", "--seconds", "--peers", "--out", "--breakdown"],
}


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        code = cli.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


def process(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(deepaa.__file__).parents[1])}
    environment.update(options.pop("env", {}))
    return subprocess.Popen(
        [sys.executable, "-m", "deepaa", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def fails(command, *arguments):
    """The one line on stderr of a command that was given bad input."""
    code, out, err = command(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not out
    return err


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_and_gives_an_example(command, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert f"Example: deepaa {name}" in out
    assert all(option in out for option in COMMANDS[name])
    found = typer.main.get_command(cli.app)
    for part in name.split():
        found = found.commands[part]
    for parameter in found.params:
        assert parameter.opts[-1] in out or parameter.metavar in out
        assert parameter.help, f"{parameter.name} has no help"


def test_help_fits_into_80_columns(command):
    for name in ("", *COMMANDS):
        _, out, _ = command(*name.split(), "--help")
        assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_help_comes(command):
    code, out, err = command()
    assert code == 0
    assert all(name.split()[0] in out for name in COMMANDS)
    assert not err


def test_every_command_is_tested():
    found = typer.main.get_command(cli.app).commands
    assert {name.split()[0] for name in COMMANDS} == set(found)


def test_help_and_version_do_not_wait_for_torch():
    code = textwrap.dedent("""
        import sys
        from deepaa.cli.app import run
        assert run(["--help"]) == run(["show", "--help"]) == run(["--version"]) == 0
        heavy = {"torch", "numpy", "PIL", "torchvision", "matplotlib"} & set(sys.modules)
        assert not heavy, heavy
    """)
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(deepaa.__file__).parents[1])},
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(("world", "says"), [(None, True), ("1", True), ("2", False)])
def test_only_among_several_processes_is_a_wrong_option_left_to_the_first(
    command, monkeypatch, world, says
):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    code, _, err = command("show", "deepta", "--topp", "3")
    assert (code, "No such option: --topp" in err) == (2, says)


def test_version(command):
    code, out, _ = command("--version")
    assert code == 0
    assert out.startswith("deepaa ")


# show


def test_show_in_80_columns(command):
    code, out, _ = command("show", "deepta")
    assert code == 0
    assert "deepta: 6 layers over 139 transformations of 18 operations" in out
    assert "Layers 1 to 6, all alike" in out
    assert "entropy 6.36 bits, perplexity 82.2, identity 5.6 %" in out
    assert "-30 to 30, 12 levels evenly" in out
    assert "12 others" in out
    assert "Expected uses per image" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_show_numbers(command):
    policy = Policy.uniform(CIFAR.only("identity", "rotate", "flip"), 2)
    policy.save("mine.json")
    _, out, _ = command("show", "mine.json", "--top", "1")
    assert "rotate" in out
    assert "85.7 %" in out  # 12 of 14
    assert "2 others" in out
    assert "1.714" in out  # 2 * 12 / 14


def test_show_takes_a_run_for_its_policy(command):
    Path("run").mkdir()
    Policy.uniform(CIFAR.only("rotate"), 2).save("run/policy.json")
    _, before, _ = command("show", "run")
    assert "2 layers" in before
    Policy.uniform(CIFAR.only("flip"), 3).save("run/found.json")
    _, out, _ = command("show", "run")
    assert out == f"{before}\nwhat the search itself found: deepaa show run/found.json\n"
    _, out, _ = command("show", "run/found.json")
    assert "3 layers" in out
    assert "itself found" not in out


def test_show_says_whether_the_policy_of_a_run_has_won(command):
    Path("run").mkdir()
    winner, found = Policy.uniform(CIFAR.only("rotate"), 2), Policy.uniform(CIFAR.only("flip"), 3)
    winner.save("run/policy.json")
    found.save("run/found.json")
    document = contest_files.contest()
    Path("run/contest.json").write_text(json.dumps(document))
    title = next(
        each["title"]
        for each in document["candidates"]
        if each["name"] == document["pick"]["winner"]
    )
    code, out, _ = command("show", "run")
    assert code == 0
    assert out.splitlines()[0].startswith("run: 2 layers")
    assert out.splitlines()[1].strip() == f"the winner of the contest: {title}"
    assert out.endswith("\nwhat the search itself found: deepaa show run/found.json\n")
    found.save("run/policy.json")
    assert command("show", "run")[1].endswith("\nthe search itself found this policy\n")
    Path("run/policy.json").unlink()  # the contest is going on
    code, out, err = command("show", "run")
    assert (code, out) == (2, "")
    assert "run: a folder without policy.json" in err
    assert "what its search found is there: found.json" in err
    Path("run/contest.json").write_text("{")
    winner.save("run/policy.json")
    assert "winner" not in command("show", "run")[1], "a damaged contest says nothing"


def test_a_folder_without_a_policy_says_what_it_holds(command):
    Path("trained/a").mkdir(parents=True)
    assert "without policy.json, expected a policy file" in command("show", "trained")[2]
    Path("trained/history.jsonl").write_text("{}\n")
    assert "which a run writes at its end; this one has not ended" in command("show", "trained")[2]
    Path("trained/a/policy.json").write_text("{}")
    Path("trained/b\x1b").mkdir()
    Path("trained/b\x1b/policy.json").write_text("{}")
    code, _, err = command("show", "trained")
    assert code == 2
    assert "but there are policies in trained/a, 'trained/b\\x1b'" in err
    assert command("show", "trained/a")[2].startswith("error: trained/a/policy.json: not a policy")


def test_the_notes_of_a_policy_are_indented_where_a_line_ends(command):
    space = CIFAR.only("flip")
    layers = Layers(torch.full((1, len(space)), 1 / len(space), dtype=torch.float64))
    Policy(space, layers, info={"description": "word " * 40}).save("mine.json")
    _, out, _ = command("show", "mine.json")
    notes = out.split("\n\n", 1)[0].splitlines()[1:]
    assert len(notes) > 2
    assert all(line.startswith("  ") for line in notes)


def test_show_json_is_json_alone(command):
    code, out, err = command("show", "deepta", "--json", "--top", "18")
    assert code == 0
    assert not err
    found = json.loads(out)
    assert len(found["layers"]) == 6
    assert sum(op["probability"] for op in found["layers"][0]["operations"]) == pytest.approx(1)
    assert sum(use["uses"] for use in found["uses"]) == pytest.approx(6)


@pytest.mark.parametrize("name", policy_names())
def test_every_named_policy_can_be_shown(command, name):
    code, out, _ = command("show", name)
    assert code == 0
    assert out.startswith(name)


def test_show_at_an_epoch(command):
    invert, still = (Policy.trivial(CIFAR.only(name), 1) for name in ("invert", "identity"))
    both = still.then(invert)
    stages = [(0, both.first_layers(1).phases[0].stages), (3, both.phases[0].stages)]
    Policy(both.table, schedule=stages).save("schedule.json")
    _, early, _ = command("show", "schedule.json", "--json")
    _, late, _ = command("show", "schedule.json", "--json", "--epoch", "3")
    assert (len(json.loads(early)["layers"]), len(json.loads(late)["layers"])) == (1, 2)
    assert "start at 0, 3" in command("show", "schedule.json")[1].replace("\n", " ")


def test_a_terminal_without_blocks_gets_hashes(command, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.run(["show", "crop-flip"]) == 0
    stdout.flush()
    assert b"100.0 %  ##########" in stdout.buffer.getvalue()


# preview


def test_preview_writes_a_picture_of_the_embedded_images(command):
    code, out, _ = command(
        *("preview", "deepta", "--out", "grid.png", "--images", 3, "--draws", 2, "--seed", 7)
    )
    assert code == 0
    assert out == "wrote grid.png: 3 images of 32 x 32, 2 draws each\n"
    _, out, _ = command("preview", "deepta", "--out", "one.png", "--images", "1", "--draws", "1")
    assert out == "wrote one.png: 1 image of 32 x 32, 1 draw each\n"
    layout = grid_layout(32, 32, 2)
    images = load_images(None, 3)
    want = augmented(images, load_policy("deepta"), 2, seed=7)[1].permute(1, 2, 0).numpy()
    with Image.open("grid.png") as sheet:
        found = np.asarray(sheet.crop(layout.box(2, 1)))
    assert np.array_equal(found[::3, ::3], want)


def test_preview_in_several_strengths(command):
    arguments = ("preview", "cifar10", "--images", 4, "--draws", 2, "--out", "s.png")
    code, out, _ = command(*arguments, "--strength", "0, 0.5,1")
    assert (code, out) == (
        0,
        "wrote s.png: 4 images of 32 x 32, 2 draws each at strengths 0, 0.5, 1\n",
    )
    layout = grid_layout(32, 32, 2, None, (0.0, 0.5, 1.0))
    images, policy = load_images(None, 4), load_policy("cifar10")
    with Image.open("s.png") as sheet:
        rows = [
            [np.asarray(sheet.crop(layout.box(row, column)))[::3, ::3] for column in range(4)]
            for row in range(7)
        ]
    for draw in (1, 2):
        keys = sample_keys(0, draw - 1, torch.arange(4))
        for place, s in enumerate((0.0, 0.5, 1.0)):
            want = apply_batch(images, *weaker_draw(policy, keys, s)).permute(0, 2, 3, 1).numpy()
            assert np.array_equal(rows[1 + 3 * (draw - 1) + place], want)
    assert np.array_equal(rows[1], rows[0])  # nothing is changed at 0
    assert np.array_equal(rows[1], rows[4])
    whole = policy.draw(sample_keys(0, 1, torch.arange(4)))
    assert np.array_equal(
        rows[6], apply_batch(images, whole, policy.table).permute(0, 2, 3, 1).numpy()
    )
    _, out, _ = command(*arguments, "--strength", 0.5)
    assert out.endswith("2 draws each at strength 0.5\n")


def test_preview_of_a_folder(command):
    for i in range(3):
        Image.new("RGB", (40 + i, 30), (i, 0, 0)).save(f"{i}.png")
    code, out, _ = command("preview", "crop-flip", "--data", ".", "--size", 24, "--out", "x.webp")
    assert (code, "3 images of 24 x 24" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "grid.txt"], "grid.txt: unknown kind of picture"),
        (["--out", "no/grid.png"], "the folder no does not exist"),
        (["--out", "g.png", "--data", "nowhere"], "nowhere: no such file"),
        (["--out", "g.png", "--data", "."], "no images found"),
        (["--out", "g.png", "--images", "0"], "--images"),
        (["--out", "g.png", "--size", "0"], "--size"),
        (
            ["--out", "g.png", "--strength", "strong"],
            "from 0 to 1 with commas between, got 'strong'",
        ),
        (["--out", "g.png", "--strength", "0.5,2"], "got '2' in '0.5,2'"),
        (["--out", "g.png", "--strength", "0,,1"], "got '' in '0,,1'"),
        (["--out", "g.png", "--strength", "nan"], "got 'nan'"),
        (["--out", "g.png", "--strength", "-0.5"], "got '-0.5'"),
        (["--out", "g.png", "--strength", ",".join(f".{i}" for i in range(10, 40))], "at most 20"),
        ([], "--out"),
    ],
)
def test_preview_errors(command, arguments, message):
    assert message in fails(command, "preview", "deepta", *arguments)
    assert not Path("g.png").exists()


def test_preview_names_unreadable_images(command):
    Path("page.jpg").write_text("<html>")
    assert "page.jpg (not an image)" in fails(
        command, "preview", "deepta", "--data", ".", "--out", "g.png"
    )


# convert and policies


def test_convert_round_trip(command):
    code, out, _ = command("convert", "deepta", "a.json")
    assert code == 0
    assert out.splitlines() == [
        "read deepta: 6 layers over 139 transformations",
        "wrote a.json: 6 layers over 139 transformations",
    ]
    assert load_policy(Path("a.json")).equals(load_policy("deepta"))
    command("convert", "a.json", "b.json")
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_convert_replaces_only_by_force(command):
    Path("a.json").write_text("precious")
    assert "add --force" in fails(command, "convert", "deepta", "a.json")
    assert Path("a.json").read_text() == "precious"
    assert command("convert", "deepta", "a.json", "--force")[0] == 0
    assert load_policy(Path("a.json")).depth == 6


def test_convert_symmetric(command):
    rows = Policy.uniform(CIFAR.only("rotate"), 1).table
    lopsided = torch.zeros(1, 12, dtype=torch.float64)
    lopsided[0, 0] = 1
    Policy(rows, Layers(lopsided)).save("a.json")
    command("convert", "a.json", "b.json", "--symmetric")
    assert load_policy("b.json").row_probabilities()[0].tolist() == [0.5, *[0.0] * 10, 0.5]


def test_convert_to_a_bad_place(command):
    assert "no/a.json" in fails(command, "convert", "deepta", "no/a.json")
    Path("folder").mkdir()
    assert "folder" in fails(command, "convert", "deepta", "folder")


def test_policies_are_listed_one_a_line(command):
    code, out, _ = command("policies")
    assert code == 0
    lines = out.splitlines()
    forms = ["deepaa-simple:POLICY", "pba:FILE"]  # the names that need something behind them
    assert [line.split()[0] for line in lines] == [*policy_names(), *forms]
    assert all(len(line.split()) > 1 for line in lines)


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "Missing argument 'POLICY'; try 'deepaa show --help'"),
        (["show", "deepat"], "did you mean 'deepta'"),
        (["show", "deepta", "--tpo", "3"], "No such option: --tpo"),
        (["show", "deepta", "--top", "many"], "--top"),
        (["show", "deepta", "--operations", "mine"], "MODULE:NAME"),
        (["show", "deepta", "--operations", "no_such_module:X"], "no_such_module"),
        (["show", "deepta", "--operations", "json:dumps"], "expected an Operation"),
        (["show", "deepta", "--operations", "json:nothing"], "nothing"),
        (["shwo", "deepta"], "No such command"),
        (["show", "bad.json"], "bad.json"),
        (["show", "bad.npz"], "bad.npz"),
        (["show", "."], "."),
        (["convert", "deepta"], "OUT"),
        (["bench"], "try 'deepaa bench --help'"),
        (["bench", "ops", "--device", "tpu"], "--device should be cpu, cuda or auto, got 'tpu'"),
        (["bench", "ops", "--peers", "none,such"], "choose from"),
        (["bench", "ops", "--seconds", "-1"], "seconds"),
        (["bench", "ops", "--space", "mnist"], "'mnist' is not one of 'cifar', 'imagenet'"),
        (["bench", "ops", "--size", "0"], "size"),
        (["bench", "ops", "--batch", "0"], "batch"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, arguments, message):
    Path("bad.json").write_text('{"format": "deepaa-policy", "version": 1}')
    Path("bad.npz").write_bytes(b"PK\x03\x04")
    assert message in fails(command, *arguments)


def test_unexpected_errors_tell_how_to_see_more(command, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("deepaa.policy.load_policy", broken)
    code, _, err = command("show", "deepta")
    assert code == 1
    assert err == (
        "error: unexpected RuntimeError: first line second line "
        "(set DEEPAA_DEBUG=1 to see where it came from)\n"
    )
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(RuntimeError):
        cli.run(["show", "deepta"])


def test_as_a_process():
    done = process("show", "nothing-of-this-name")
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out) == (2, "")
    assert err.startswith("error: nothing-of-this-name: no such file")
    assert err.count("\n") == 1
    done = process("show", "nothing-of-this-name", env={"DEEPAA_DEBUG": "1"})
    assert "Traceback" in done.communicate(timeout=60)[1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("given", "spins", "policy"),
    [
        ({}, "0", "PASSIVE"),
        ({"GOMP_SPINCOUNT": "7"}, "7", ""),
        ({"OMP_WAIT_POLICY": "active"}, "", "ACTIVE"),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_chose(given, spins, policy):
    """GNU's OpenMP itself tells what it found when torch loaded it."""
    if "libgomp" not in Path("/proc/self/maps").read_text():
        pytest.skip("torch uses another OpenMP here")
    free = dict.fromkeys(cli.WAITING)
    environment = {**os.environ, **free, **given, "OMP_DISPLAY_ENV": "verbose"}
    environment = {name: value for name, value in environment.items() if value is not None}
    environment["PYTHONPATH"] = str(Path(deepaa.__file__).parents[1])
    words = [sys.executable, "-m", "deepaa", "show", "deepta", "--top", "1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    told = dict(re.findall(r"(GOMP_SPINCOUNT|OMP_WAIT_POLICY) = '(\w+)'", done.stderr))
    assert spins in ("", told["GOMP_SPINCOUNT"])
    assert policy in ("", told["OMP_WAIT_POLICY"])


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals")
def test_ctrl_c_is_quiet():
    running = process("bench", "ops", "--device", "cpu", "--peers", "none", "--seconds", "300")
    assert running.stderr is not None
    running.stderr.readline()  # the first setting is being measured
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert not out
    assert "Traceback" not in err
    assert "error" not in err


def test_a_closed_pipe_is_quiet():
    running = process("show", "deepta", "--json")
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == ""
    assert running.wait(timeout=60) in (0, 1)


# doctor and bench


def test_doctor(command, monkeypatch):
    monkeypatch.setattr(doctor, "SHAPES", ((3, 8, 8),))
    code, out, _ = command("doctor")
    assert code == 0
    assert "all checks passed" in out
    assert "0 of" in out
    code, out, _ = command("doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["passed"] is True
    assert found["versions"]["python"]
    monkeypatch.setattr("deepaa.data.embedded_is_intact", lambda: False)
    code, out, _ = command("doctor")
    assert code == 1
    assert "1 check failed" in out
    assert command("doctor", "--json")[0] == 1


def test_bench_ops(command):
    code, out, _ = command(
        *("bench", "ops", "--device", "cpu", "--size", 8, "--batch", 16, "--seconds", 0.001),
        *("--peers", "none", "--out", "b.json"),
    )
    assert code == 0
    assert "deepaa batch" in out
    assert "wrote b.json" in out
    assert json.loads(Path("b.json").read_text())["results"]


# An operation of the user's own, through everything

MODULE = '''
from PIL import Image
from deepaa.ops import space

def fade(image, m, u, *, colour):
    """Towards one colour by m; a random number decides whether at all."""
    if u[0] < 0.25:
        return image
    return Image.blend(image, Image.new(image.mode, image.size, colour), m)

FADE = space.Operation(
    "fade", 0.0, 1.0, neutral=0.0, options={"colour": "#0a141e"}, uniforms=1, pil=fade
)
'''


@pytest.fixture
def fade(command, monkeypatch):
    Path("fading.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "fading", raising=False)
    import fading  # the file just written

    yield fading.FADE
    del sys.modules["fading"]


def test_an_operation_of_ones_own(command, fade):
    space = Space((*CIFAR.only("identity", "flip").operations, fade), levels=3)
    assert [str(t) for t in space.transformations] == ["identity", "flip", "fade 0.5", "fade 1"]
    policy = Policy.uniform(space, 2)
    policy.save("mine.json")
    loaded = load_policy("mine.json", operations=[fade])
    assert loaded.equals(policy)

    images = load_images(None, 64)
    draw = loaded.sample(64, torch.Generator().manual_seed(0))
    out = apply_batch(images, draw, loaded.table)
    faded = (draw.choice[:, 1] == 3) & (draw.uniform[:, 1, 0] >= 0.25)
    assert faded.any()
    assert (out[faded] == torch.tensor([10, 20, 30])[:, None, None]).all()

    code, text, _ = command("show", "mine.json", "--operations", "fading:FADE")
    assert code == 0
    assert "fade" in text
    assert "0.5 to 1, 2 levels evenly" in text
    arguments = ("mine.json", "--operations", "fading:FADE", "--out", "g.png", "--images", 4)
    assert command("preview", *arguments)[0] == 0
    layout = grid_layout(32, 32, 4)
    want = augmented(images[:4], policy, 3)[2].permute(1, 2, 0).numpy()
    with Image.open("g.png") as sheet:
        assert np.array_equal(np.asarray(sheet.crop(layout.box(3, 2)))[::3, ::3], want)
    assert command("convert", "mine.json", "two.json", "--operations", "fading:FADE")[0] == 0
    assert Path("two.json").read_bytes() == Path("mine.json").read_bytes()


def test_an_unknown_operation_says_how_to_give_it(command, fade):
    Policy.uniform(Space((fade,)), 1).save("mine.json")
    message = fails(command, "show", "mine.json")
    assert 'unknown operation "fade"' in message
    assert "--operations MODULE:NAME" in message


def test_a_module_is_found_in_the_current_folder(command):
    Path("several.py").write_text(MODULE + "\nALL = [FADE]\n")
    try:
        assert command("show", "deepta", "--operations", "several:ALL")[0] == 0
    finally:
        sys.modules.pop("several", None)
    Path("broken.py").write_text("1 / 0")
    assert "ZeroDivisionError" in fails(command, "show", "deepta", "--operations", "broken:ALL")


def test_an_error_in_a_terminal_has_no_broken_words() -> None:
    outer, inner = open_terminal(40)
    words = ["show", "a-policy-that-nobody-has-written-down"]
    environment = {**os.environ, "COLUMNS": "", "PYTHONPATH": str(Path(deepaa.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "deepaa", *words], stdout=inner, stderr=inner, env=environment
    )
    os.close(inner)
    lines = lines_shown(read_terminal(outer))
    assert process.wait(60) == 2
    assert lines[0].startswith("error:")
    assert len(lines) > 1
    assert all(line.startswith("  ") for line in lines[1:])
    whole = {word for line in lines for word in line.split()}
    assert {"a-policy-that-nobody-has-written-down:", "trivialaugment-wide,"} <= whole


def test_a_line_of_a_result_in_a_terminal_has_no_broken_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["convert", "trivialaugment-wide", "copied.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 40
    assert "over" in [word for line in lines for word in line.split()]


def test_advice_fits_a_terminal_and_code_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    place = Path("a-long-folder-of-runs") / ("of-a-day-" * 8) / "policy.json"
    print_use(load_policy("trivialaugment"), place)
    lines = capsys.readouterr().out.splitlines()
    assert f"    augment = DeepAutoAugment({str(place)!r})" in lines
    assert lines[-1].endswith("normalise after.")
    assert max(len(line) for line in lines if "DeepAutoAugment(" not in line) <= 80
