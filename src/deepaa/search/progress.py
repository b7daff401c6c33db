"""What a person sees of a search while it runs, on stderr."""

from __future__ import annotations

from deepaa.runs import ProgressLine, duration
from deepaa.search.contest import ContestEntry, ContestEpoch, ContestProgress, ContestRecord
from deepaa.search.cost import Cost
from deepaa.search.gradient_matching.search import LayerRecord, StepRecord
from deepaa.search.methods import TrialRecord
from deepaa.search.plain_network import ProtectionRecord
from deepaa.search.policy_search import Record
from deepaa.search.proved import ProvedSearch
from deepaa.train import EpochRecord


class SearchProgress:
    """Shows the records of a search on stderr: call it with each."""

    def __init__(
        self, proved: ProvedSearch, cost: Cost | None = None, line: ProgressLine | None = None
    ) -> None:
        """Shows also what the search says between its records.

        Args:
            cost: What later parts take, for the time that is left of the whole job.
            line: Where it is shown.
        """
        self.proved, self.search, self.line = proved, proved.search, line or ProgressLine()
        self.search.show = self.line.update
        self.contest: ContestProgress | None = None
        self.cost = cost or Cost(0.0, 0.0, 0.0, 1.0)
        self._seconds, self._units = 0.0, 0  # of the units that another method did
        self.rate, self.passes = 0.0, 0  # image passes a second, smoothed, and their number so far

    def __call__(self, record: Record | ContestRecord) -> None:
        """Show one record; a finished layer and a judged candidate stay on the screen."""
        if isinstance(record, ContestEpoch | ContestEntry):
            if self.contest is None:
                assert self.proved.contest is not None
                self.contest = ContestProgress(self.proved.contest, self.line)
            self.contest(record)
        elif isinstance(record, LayerRecord):
            self.passes = record.passes
            hint = "; --layers auto drops such a layer" if _is_kept_for_nothing(record) else ""
            self.line.message(
                f"layer {record.layer} {'kept' if record.kept else 'dropped'} ({record.reason}): "
                f"held-out similarity {record.improvement_mean:+.4f} over no augmentation, "
                f"DeepTA {record.deepta_mean:+.4f}{hint}"
            )
        elif isinstance(record, ProtectionRecord):
            # the policies of a contest have operations that the search has not
            alone = self.proved.config is None
            for line in record.lines_about(self.search.whole_space.table.rows if alone else None):
                self.line.message(line)
        elif isinstance(record, EpochRecord):
            self._show_epoch(record)
        elif isinstance(record, TrialRecord):
            self.line.update(self.trial_text(record), always=record.index == record.of)
        else:
            is_last = record.step == self.search.config.steps
            self.line.update(self.step_text(record), always=is_last)

    def clear(self) -> None:
        """Remove the line that changes; what stays on the screen stays."""
        self.line.clear()

    def _show_epoch(self, record: EpochRecord) -> None:
        epochs = self.search.proxy.train.epochs
        left = epochs - record.epoch - 1
        after = self.cost.protection + self.cost.search + self.cost.contest
        seconds = record.seconds * left + after
        held = record.heldout_accuracy
        measured = "" if held is None else f", held-out {held:.3f}"
        text = (
            f"pre-training {record.epoch + 1}/{epochs}  left {duration(seconds)}  "
            f"loss {record.loss:.3f}  accuracy {record.accuracy:.3f}{measured}"
        )
        self.line.update(text, always=left == 0)
        warning = little_learnt(record, len(self.search.data.class_names))
        if left == 0 and warning is not None:
            self.line.message(f"warning: {warning}")

    def trial_text(self, record: TrialRecord) -> str:
        """Where another method is, how well it does, and the time that is left."""
        self._seconds += record.seconds
        self._units += 1
        left = self._seconds / self._units * (record.of - record.index) + self.cost.contest
        best = "" if record.best is None else f"best {record.best:.3f}  "
        assert self.search.method is not None
        return (
            f"{self.search.method.name}  {record.unit} {record.index}/{record.of}  {best}"
            f"left {duration(left)}  {record.summary}"
        )

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


def _is_kept_for_nothing(record: LayerRecord) -> bool:
    """Whether only the number of layers that was asked for has kept a layer."""
    return record.kept and "although" in record.reason


def little_learnt(record: EpochRecord, classes: int) -> str | None:
    """A warning about a network that is hardly better than guessing; None for a better one."""
    chance, held = 1 / classes, record.heldout_accuracy
    accuracy, what = record.accuracy, "the images it is trained on"
    if held is not None and held < accuracy:
        accuracy, what = held, "held-out images"
    if accuracy >= max(2 * chance, chance + 0.1):
        return None
    return (
        f"the network has learnt little: accuracy {accuracy:.2f} on {what}, and "
        f"guessing gives {chance:.2f}; its gradients may mislead the search, more --epochs or more "
        "images (--splits) may help"
    )
