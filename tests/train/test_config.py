"""The settings of a training and the learning rate they mean."""

import json
import math
from dataclasses import asdict, replace

import pytest

from deepaa.train.config import TrainConfig, learning_rate


def test_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    config = TrainConfig(epochs=10, lr=0.4, warmup_epochs=2)
    rates = [learning_rate(config, at) for at in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.2, 0])


def test_a_warm_up_may_begin_above_zero():
    config = TrainConfig(epochs=10, lr=0.8, warmup_epochs=5, warmup_from=0.125)
    rates = [learning_rate(config, at) for at in (0, 2.5, 5)]
    assert rates == pytest.approx([0.1, 0.45, 0.8])


def test_learning_rate_falls_in_steps_at_the_milestones():
    config = TrainConfig(
        epochs=270, lr=0.8, warmup_epochs=5, schedule="step", milestones=(90, 180, 240)
    )
    rates = [learning_rate(config, at) for at in (0, 2.5, 5, 89.99, 90, 179, 180, 241)]
    assert rates == pytest.approx([0, 0.4, 0.8, 0.8, 0.08, 0.08, 0.008, 0.0008])
    halved = replace(config, gamma=0.5)
    assert learning_rate(halved, 200) == pytest.approx(0.2)


def test_settings_survive_json():
    config = TrainConfig(schedule="step", milestones=(10, 20.5), copies=2, graph=False)
    assert TrainConfig(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("epochs", 2.5),
        ("batch", 0),
        ("batch", 128.0),
        ("seed", "0"),
        ("lr", math.nan),
        ("lr", math.inf),
        ("momentum", 1.5),
        ("label_smoothing", -0.1),
        ("warmup_epochs", 46),
        ("warmup_epochs", 45),
        ("precision", "int8"),
        ("clip", -1),
        ("copies", 0),
        ("warmup_from", 2),
        ("gamma", -1),
        ("schedule", "linear"),
        ("milestones", (10, 20)),
    ],
)
def test_settings_without_meaning_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        TrainConfig(**{field: value})


@pytest.mark.parametrize("milestones", [(20, 10), (10, 10), (0, 10), (math.nan,), (math.inf,)])
def test_milestones_without_meaning_are_refused(milestones):
    with pytest.raises(ValueError, match="milestones"):
        TrainConfig(schedule="step", milestones=milestones)
