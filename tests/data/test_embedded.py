"""The images that come with the package."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

import deepaa
from deepaa.data import embedded as data
from deepaa.data.embedded import load_embedded

FOLDER = Path(deepaa.__file__).parent / "data" / "cifar10"
OFFICIAL = (125.307, 122.950, 113.865)  # mean of the 50,000 training images

# Embedded images


def test_embedded_counts_types_and_balance():
    found = load_embedded()
    assert found.train_images.shape == (4000, 3, 32, 32)
    assert found.test_images.shape == (1000, 3, 32, 32)
    assert found.train_images.dtype == found.test_images.dtype == torch.uint8
    assert found.train_labels.dtype == found.test_labels.dtype == torch.int64
    assert found.train_labels.bincount().tolist() == [400] * 10
    assert found.test_labels.bincount().tolist() == [100] * 10
    assert len(found.class_names) == 10
    assert found.class_names[0] == "airplane"
    assert found.class_names[9] == "truck"


def test_first_images_are_balanced_for_every_n():
    labels = load_embedded().train_labels
    counts = torch.nn.functional.one_hot(labels, 10).cumsum(0)
    assert int((counts.amax(1) - counts.amin(1)).max()) == 1


def test_package_data_stay_under_ten_megabytes():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 10_000_000


def test_pixels_have_the_checksum_they_were_made_with():
    assert data.embedded_is_intact()
    images = load_embedded().train_images.permute(0, 2, 3, 1).contiguous().numpy()
    assert hashlib.sha256(images.tobytes()).hexdigest() == (
        "6ebd86ac3cd2e8a06641128a44c1d349a3377be72679c447bbece6c87dcfe9de"
    )


def test_images_are_the_first_of_each_class_in_the_official_order():
    description = json.loads((FOLDER / "cifar10.json").read_text())
    index, labels = (np.array(description["train"][key]) for key in ("official_index", "labels"))
    for c in range(10):
        assert (np.diff(index[labels == c]) > 0).all()
    # the official labels begin 6 9 9 4 1 1 2 7 8 3
    first = dict(zip(index.tolist(), labels.tolist(), strict=True))
    assert [first[i] for i in range(10)] == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    means = load_embedded().train_images.double().mean((0, 2, 3))
    assert torch.allclose(means, torch.tensor(OFFICIAL, dtype=torch.float64), atol=2.0)


def test_a_caller_may_write_to_what_it_got():
    first = load_embedded()
    before = first.train_images.clone()
    first.train_images.zero_()
    first.train_labels.fill_(7)
    again = load_embedded()
    assert torch.equal(again.train_images, before)
    assert again.train_labels[:3].tolist() == [0, 1, 2]
