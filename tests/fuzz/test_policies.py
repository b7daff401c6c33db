"""20,000 mutants of policy files: each becomes a policy that works, or one line of an error."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import is_found, run_round
from policy_mutants import policy_mutant

from deepaa.files import Archive
from deepaa.ops import apply_batch, apply_pil, sample_keys, tensor_to_pil
from deepaa.policy import Layers, Policy, PolicyFileError, dumps, load_policy, strict_json
from deepaa.policy.load import read_policy_text

ROUNDS, EACH = 4, 5_000
IMAGES = torch.randint(0, 256, (2, 3, 9, 8), generator=torch.Generator().manual_seed(0))
IMAGES = IMAGES.to(torch.uint8)


class Reader:
    """Reads the mutant of a seed, and uses what it became."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parsed = 0
        """Mutants whose text or archive was no damage to the parser."""

    def __call__(self, seed: int) -> str:
        mutant = policy_mutant(seed)
        path = self.folder / mutant.name
        path.write_bytes(mutant.data)
        try:
            policy = load_policy(path)
        except PolicyFileError as error:
            if not str(error).startswith(f"{path}: "):
                raise AssertionError(f"no file is named: {error}") from error
            self.parsed += not any(words in str(error) for words in PARSERS_WORDS)
            raise
        except ValueError as error:
            raise AssertionError(f"no error of a policy file: {error}") from error
        self.parsed += 1
        use(policy, seed)
        return "policy"


PARSERS_WORDS = ("not JSON", "cut short", "not UTF-8", "nested too deeply", "not an .npz file")
PARSERS_WORDS += ("header cannot be read", "is damaged", "is empty", "not a log of PBA")


def use(policy: Policy, seed: int) -> None:
    """What people do with a policy: apply it in each phase, write it, and take parts of it."""
    for phase in policy.phases[:2]:
        for stage in phase.stages:
            chances = stage.probabilities if isinstance(stage, Layers) else stage.weights[None]
            assert bool(((chances.sum(1) - 1).abs() <= 1.1e-6).all())
        keys = sample_keys(seed, phase.epoch, torch.arange(len(IMAGES)))
        draw = policy.draw(keys, phase.epoch)
        found = apply_batch(IMAGES, draw, policy.table)
        assert found.shape == IMAGES.shape
        if seed % 4 == 0:
            one = apply_pil(tensor_to_pil(IMAGES[0]), draw[:1], policy.table)
            assert tensor_to_pil(found[0]).tobytes() == one.tobytes()
    if seed % 4 == 1:
        again = read_policy_text(dumps(policy), "again").policy
        assert again.equals(policy)
    if seed % 4 == 2:
        policy.symmetric()
    if seed % 4 == 3:
        policy.first_layers(min(1, policy.most_layers))
        policy.expected_uses()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_mutant_is_a_policy_or_one_line(number: int, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    counts, failures = run_round(range(number * EACH, (number + 1) * EACH), reader)
    assert failures == []
    assert sum(counts.values()) == EACH
    assert reader.parsed > 0.5 * EACH
    assert counts["policy"] > 0.4 * EACH, counts  # and most of those work


# Bugs that are planted are found


def unchecked_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and operations may have any number."""
    monkeypatch.setattr(strict_json.Value, "integer", lambda self, low, high: self.value)


def unchecked_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What operations and tables refuse is not said with the file and the place."""
    monkeypatch.setattr(strict_json.Value, "checks", lambda self: nullcontext())


def unchecked_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of any type and size are taken."""
    read = Archive.read

    def read_all(self: Archive, name: str, check: Any) -> Any:
        return read(self, name, lambda header: None)

    monkeypatch.setattr(Archive, "read", read_all)


def unchecked_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities may sum to anything."""
    monkeypatch.setattr("deepaa.policy.stages.check_sum", lambda numbers, what: None)
    monkeypatch.setattr("deepaa.policy.format.check_sum", lambda numbers, what: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [unchecked_rows, unchecked_constructors, unchecked_headers, unchecked_sums],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(
    plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_found(range(2_000), Reader(tmp_path))


def test_a_few_mutants(tmp_path: Path) -> None:
    """The same quickly, for `make test`."""
    reader = Reader(tmp_path)
    counts, failures = run_round(range(10**6, 10**6 + 300), reader)
    assert failures == []
    assert counts["policy"] > 100
