"""What a person reads while a search runs: one text for each of its records."""

from __future__ import annotations

from deepaa.runs import ProgressLine, duration
from deepaa.search.cost import passes_left
from deepaa.search.gradient_matching.records import LayerRecord, StepRecord
from deepaa.search.policy_search import PolicySearch, Record
from deepaa.train import EpochRecord


class SearchProgress:
    """Shows the records of a search on stderr: call it with each."""

    def __init__(self, search: PolicySearch, *, enabled: bool = True) -> None:
        """Show nothing where it is not `enabled`."""
        self.search, self.enabled = search, enabled
        self.line = ProgressLine()
        self.rate = 0.0  # image passes a second, smoothed
        self.passes = 0

    def __call__(self, record: Record) -> None:
        """Show one record; a finished layer stays on the screen."""
        if not self.enabled:
            return
        if isinstance(record, LayerRecord):
            self.passes = record.passes
            self.line.message(layer_text(record))
        elif isinstance(record, EpochRecord):
            epochs = self.search.proxy.train.epochs
            is_last = record.epoch + 1 == epochs
            self.line.update(epoch_text(record, epochs), always=is_last)
            warning = little_learnt(record, len(self.search.data.class_names))
            if is_last and warning is not None:
                self.line.message(f"warning: {warning}")
        else:
            is_last = record.step == self.search.config.steps
            self.line.update(self.step_text(record), always=is_last)

    def clear(self) -> None:
        """Remove the line that changes; what stays on the screen stays."""
        if self.enabled:
            self.line.clear()

    def step_text(self, record: StepRecord) -> str:
        """Where the search is, how well the layer does, and the time that is left."""
        config = self.search.config
        if self.passes and record.step > 1:  # a first step compiles
            now = (record.passes - self.passes) / max(record.seconds, 1e-6)
            self.rate = 0.9 * self.rate + 0.1 * now if self.rate else now
        self.passes = record.passes
        passes = passes_left(config, len(self.search.space), record.layer, record.step)
        left = f"left {duration(passes / self.rate)}  " if self.rate else ""
        depth = config.layers or f"at most {config.max_layers}"
        top = ", ".join(f"{name} {share:.2f}" for name, share in record.top)
        return (
            f"layer {record.layer} of {depth}  step {record.step}/{config.steps}  "
            f"similarity {record.similarity:.3f}  {left}{top}"
        )


def epoch_text(record: EpochRecord, epochs: int) -> str:
    """Where the pre-training is, how well it does, and the time that is left."""
    left = duration(record.seconds * (epochs - record.epoch - 1))
    return (
        f"pre-training {record.epoch + 1}/{epochs}  loss {record.loss:.3f}  "
        f"accuracy {record.accuracy:.3f}  left {left}"
    )


def layer_text(record: LayerRecord) -> str:
    """Whether a layer was kept, why, and what it brings on held-out images."""
    verdict = "kept" if record.kept else "dropped"
    return (
        f"layer {record.layer} {verdict} ({record.reason}): held-out similarity "
        f"{record.improvement_mean:+.4f} over no augmentation, DeepTA {record.deepta_mean:+.4f}"
    )


def little_learnt(record: EpochRecord, classes: int) -> str | None:
    """A warning about a network that is hardly better than guessing; None for a better one."""
    chance = 1 / classes
    if record.accuracy >= max(2 * chance, chance + 0.1):
        return None
    return (
        f"the network has learnt little: accuracy {record.accuracy:.2f} on augmented images, and "
        f"guessing gives {chance:.2f}; its gradients may mislead the search, more --epochs or more "
        "images (--splits) may help"
    )
