"""What a person sees of a search while it runs, on stderr."""

from __future__ import annotations

from deepaa.runs import ProgressLine, duration
from deepaa.search.contest import ContestEntry, ContestEpoch, ContestProgress, ContestRecord
from deepaa.search.cost import Cost
from deepaa.search.gradient_matching.search import LayerRecord, StepRecord
from deepaa.search.plain_network import ProtectionRecord
from deepaa.search.policy_search import Record
from deepaa.search.proved import ProvedSearch
from deepaa.train import EpochRecord


class SearchProgress:
    """Shows the records of a search on stderr: call it with each."""

    def __init__(self, proved: ProvedSearch, cost: Cost | None = None) -> None:
        """Nothing is shown before the first record.

        Args:
            cost: What later parts take, for the time that is left of the whole job.
        """
        self.proved, self.search, self.line = proved, proved.search, ProgressLine()
        self.contest: ContestProgress | None = None
        self.cost = cost or Cost(0.0, 0.0, 0.0, 1.0)
        self.rate, self.passes = 0.0, 0  # image passes a second, smoothed, and their number so far

    def __call__(self, record: Record | ContestRecord) -> None:
        """Show one record; a finished layer and a judged candidate stay on the screen."""
        if isinstance(record, ContestEpoch | ContestEntry):
            if self.contest is None:
                assert self.proved.contest is not None
                self.contest = ContestProgress(self.proved.contest.contest, self.line)
            self.contest(record)
        elif isinstance(record, LayerRecord):
            self.passes = record.passes
            self.line.message(
                f"layer {record.layer} {'kept' if record.kept else 'dropped'} ({record.reason}): "
                f"held-out similarity {record.improvement_mean:+.4f} over no augmentation, "
                f"DeepTA {record.deepta_mean:+.4f}"
            )
        elif isinstance(record, ProtectionRecord):
            for line in record.lines:
                self.line.message(line)
        elif isinstance(record, EpochRecord):
            self._show_epoch(record)
        else:
            is_last = record.step == self.search.config.steps
            self.line.update(self.step_text(record), always=is_last)

    def clear(self) -> None:
        """Remove the line that changes; what stays on the screen stays."""
        self.line.clear()

    def _show_epoch(self, record: EpochRecord) -> None:
        epochs = self.search.proxy.train.epochs
        left = epochs - record.epoch - 1
        seconds = record.seconds * left + self.cost.search + self.cost.contest
        text = (
            f"pre-training {record.epoch + 1}/{epochs}  left {duration(seconds)}  "
            f"loss {record.loss:.3f}  accuracy {record.accuracy:.3f}"
        )
        self.line.update(text, always=left == 0)
        warning = little_learnt(record, len(self.search.data.class_names))
        if left == 0 and warning is not None:
            self.line.message(f"warning: {warning}")
        if left == 0 and self.search.config.protect:
            self.line.update("looking for operations that turn one class into another")

    def step_text(self, record: StepRecord) -> str:
        """Where the search is, how well the layer does, and the time that is left."""
        config = self.search.config
        if self.passes and record.step > 1:  # a first step compiles
            now = (record.passes - self.passes) / max(record.seconds, 1e-6)
            self.rate = 0.9 * self.rate + 0.1 * now if self.rate else now
        self.passes = record.passes
        passes = config.passes_left(len(self.search.space), record.layer, record.step)
        left = ""
        if self.rate:
            left = f"left {duration(passes / self.rate + self.cost.contest)}  "
        depth = config.layers or f"at most {config.max_layers}"
        top = ", ".join(f"{name} {share:.2f}" for name, share in record.top)
        return (
            f"layer {record.layer} of {depth}  step {record.step}/{config.steps}  {left}"
            f"similarity {record.similarity:.3f}  {top}"
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
