"""Write a search method of your own, and let it compete with others on the same images.

Usage: python examples/09_own_search_method.py

The command takes it, too, if this file is called strengths.py and lies in the current folder:
deepaa search --methods strengths:Strengths,random,deepaa --budget 2M
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from deepaa import Policy, find_policy, load_policy
from deepaa.search import TrainedChoice, TrainedChoiceConfig, World


@dataclass(frozen=True)
class StrengthsConfig(TrainedChoiceConfig):
    """How strong, and how each is trained."""

    strengths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)


class Strengths(TrainedChoice):
    """TrivialAugment at several strengths: each trains a network, validation images decide."""

    method, result, Config = "strengths", "layers", StrengthsConfig
    presets: ClassVar = {"demo": StrengthsConfig(epochs=2), "fast": StrengthsConfig()}

    @classmethod
    def count(cls, config: StrengthsConfig) -> int:
        """How many policies there are."""
        return len(config.strengths)

    @classmethod
    def candidates(cls, config: StrengthsConfig, world: World) -> list[Policy]:
        """The policies, without what the user leaves out or what turns one class into another."""
        names = {operation.name for operation in world.space.operations}
        trivial = load_policy("trivialaugment-wide").without(world.excludes)
        trivial = trivial.without(lambda row: row.operation.name not in names)
        return [trivial.strength(strength) for strength in config.strengths]

    def pick(self, scores: Sequence[float], error: float) -> int:
        """The best; its standard error could be a reason for a weaker one."""
        return max(range(len(scores)), key=scores.__getitem__)

    def describe(self, policy: int) -> str:
        """What progress calls a policy."""
        return f"strength {self.config.strengths[policy]}"


def main() -> None:
    """Search on the images that come with the package; nothing is proved without a contest."""
    info = find_policy(method=Strengths, preset="demo", contest=False, protect=False).info
    print(f"{info['description']}: {info['settings']}, {info['passes']} passes")


if __name__ == "__main__":
    main()
