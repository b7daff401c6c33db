"""The settings of Fast AutoAugment, and how they shrink to a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepaa.search.methods.recognition import DRAWS, OBJECTIVES
from deepaa.search.methods.searcher import MOST_EPOCHS, MethodConfig, check_counts

SAMPLERS = ("tpe", "random")
LEAST_EPOCHS, LEAST_TRIALS, LEAST_STARTUP = 4, 20, 5
"""A search with less finds nothing."""


@dataclass(frozen=True)
class FastAutoAugmentConfig(MethodConfig):
    """How networks are trained and policies are tried."""

    folds: int = 5
    """Networks, each trained on another random 60 % of the images and asked about the rest."""
    rounds: int = 1
    """Searches on each fold, which know nothing of each other."""
    trials: int = 100
    """Policies that each of these searches tries."""
    keep: int = 5
    """The best trials of each, whose sub-policies make the result."""
    epochs: int = 60
    """Of the training of each network."""
    objective: str = "loss"
    """loss: the mean loss of five draws of each image; accuracy: the share of draws that are right;
    any5: the share of images that are right in at least one draw."""
    sampler: str = "tpe"
    """tpe tries what is like the best trials; random is the control with the same objective."""
    startup: int = 20
    """Random trials before TPE begins."""
    candidates: int = 24
    """Values among which TPE chooses for each parameter."""
    common_noise: bool = True
    """Whether the trials of a search see the same crops, flips and gates, so that luck is equal."""
    equal_data: bool = False
    """Use the search and the validation part too, as gradient matching does."""
    batch: int = 1280
    """The most augmented images that go through a network at once; scores do not depend on it."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        super().__post_init__()
        check_counts(
            self,
            folds=(1, 100),
            rounds=(1, 1_000),
            trials=(1, 100_000),
            keep=(1, 100_000),
            epochs=(1, MOST_EPOCHS),
            startup=(1, 100_000),
            candidates=(1, 10_000),
            all_trials=(1, 1_000_000),
            all_kept=(1, 5_000),  # a policy file holds their sub-policies, with either sign
        )
        if self.keep > self.trials:
            raise ValueError(f"keep should be at most the {self.trials} trials, got {self.keep}")
        if self.batch < DRAWS:
            raise ValueError(f"batch should be at least {DRAWS}, got {self.batch}")
        for name, known in (("objective", OBJECTIVES), ("sampler", SAMPLERS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} should be {' or '.join(known)}, got {value!r}")

    @property
    def all_trials(self) -> int:
        """Trials of all rounds and folds."""
        return self.rounds * self.folds * self.trials

    @property
    def all_kept(self) -> int:
        """Trials of all rounds and folds whose sub-policies are kept."""
        return self.rounds * self.folds * self.keep

    def smaller(self) -> Iterator[FastAutoAugmentConfig]:
        """Ever cheaper searches, this one first and the cheapest one last.

        Trials and epochs shrink together, and with them what is kept; then rounds, then folds.
        """
        yield self
        shortest = self
        for percent in range(99, 0, -1):
            trials = max(min(LEAST_TRIALS, self.trials), self.trials * percent // 100)
            epochs = max(min(LEAST_EPOCHS, self.epochs), self.epochs * percent // 100)
            keep = max(1, self.keep * trials // self.trials)
            startup = min(self.startup, max(LEAST_STARTUP, trials // 4))
            shortest = replace(self, trials=trials, epochs=epochs, keep=keep, startup=startup)
            yield shortest
        for rounds in range(self.rounds - 1, 0, -1):
            shortest = replace(shortest, rounds=rounds)
            yield shortest
        for count in range(self.folds - 1, 0, -1):
            yield replace(shortest, folds=count)
