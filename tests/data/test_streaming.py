"""Images read anew in every epoch: what is decoded, in which order, and what goes wrong."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import BICUBIC, SIZE, all_of, decoded, picture, save_photos, streamed
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as vision

import deepaa.data.decoding
from deepaa.data import streaming
from deepaa.data.decoding import centred
from deepaa.data.folder import list_images
from deepaa.data.image_file import DEFAULT_READING, Reading
from deepaa.data.scan import BadImagesError
from deepaa.data.streaming import StreamedImages
from deepaa.ops.resized_crop import fallback_box, resized_crop_boxes, shape_grids
from deepaa.ops.rng import draw_words, hash_int, hash_keys, sample_keys


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos"))


# Pixels


def test_random_crops_are_those_of_torchvision_with_our_boxes(folder):
    stream = streamed(folder)
    images, _, rows = all_of(stream, epoch=3)
    pictures = decoded(folder, "train")
    keys = sample_keys(hash_int(5, deepaa.data.decoding._CROPS), 3, rows)
    words = hash_keys(keys[:, None], torch.arange(12))
    uniforms = ((words >> 40) & 0xFFFFFF).double() * 2.0**-24
    boxes = []
    for got, row, u in zip(images, rows.tolist(), uniforms, strict=True):
        w, h = pictures[row].size
        scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
        area, shape = (torch.tensor(grid).double() for grid in shape_grids(h, w, scale, ratio))
        fallback = torch.tensor(fallback_box(h, w, ratio))
        x, y, bw, bh = resized_crop_boxes(u, h, w, area, shape, fallback).tolist()
        cut = vision.resized_crop(pictures[row], y, x, bh, bw, [SIZE, SIZE], BICUBIC)
        assert torch.equal(got, vision.pil_to_tensor(cut))
        boxes.append(bw * bh / (w * h))
    assert min(boxes) < 0.3
    assert max(boxes) > 0.8


def test_crops_do_not_repeat_the_numbers_of_a_policy_with_the_same_seed():
    rows = torch.arange(2000)
    ours = hash_keys(
        sample_keys(hash_int(5, deepaa.data.decoding._CROPS), 3, rows), torch.tensor(0)
    )
    choice, _, _ = draw_words(sample_keys(5, 3, rows), 1, 1)
    pair = torch.stack((((ours >> 11) & (2**53 - 1)).double(), choice[:, 0].double()))
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / 2000**0.5


@pytest.mark.parametrize(("train", "short"), [(True, SIZE), (False, 27)])
def test_middle_squares_are_those_of_torchvision(folder, train, short):
    stream = streamed(folder, train=train, crop="centre")
    images, _, rows = all_of(stream, batch=41)
    reference = v2.Compose([v2.Resize(short, BICUBIC), v2.CenterCrop(SIZE), v2.PILToTensor()])
    pictures = decoded(folder, "train" if train else "test")
    assert round(SIZE * 256 / 224) == 27
    assert len(rows) == len(pictures)
    for got, row in zip(images, rows.tolist(), strict=True):
        assert torch.equal(got, reference(pictures[row]))


def test_evaluation_takes_every_image_in_order(folder):
    _, labels, rows = all_of(streamed(folder, train=False), batch=4)
    assert rows.tolist() == list(range(10))
    assert labels.tolist() == list(list_images(folder, "test").labels)


@pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (1, 1), (2, 5), (24, 24)])
def test_pictures_of_odd_shapes(shape):
    whole = picture(*shape, seed=0)
    assert centred(whole, SIZE, SIZE).size == (SIZE, SIZE)
    flat = Image.new("RGB", shape, (10, 20, 30))  # nothing but the colour may come of it
    assert set(centred(flat, SIZE + 3, SIZE).getcolors()) == {(SIZE * SIZE, (10, 20, 30))}


def test_files_become_rgb_as_elsewhere(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    turned = picture(40, 30, 1)
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    turned.save(tmp_path / "a" / "turned.png", exif=exif)
    grey = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    Image.fromarray(grey).save(tmp_path / "b" / "grey.png")
    stream = streamed(tmp_path, crop="centre")
    images, labels, _ = all_of(stream, batch=2)
    upright = centred(turned.transpose(Image.Transpose.ROTATE_270), SIZE, SIZE)
    ours = images[int(labels.argmin())]
    assert torch.equal(ours, vision.pil_to_tensor(upright))
    assert len(images[int(labels.argmax())].unique()) > 100  # 16 bits are not clipped to white


# Order and randomness


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(folder, workers):
    alone, many = streamed(folder), streamed(folder, workers=workers)
    for epoch in (0, 1):
        for a, b in zip(all_of(alone, epoch), all_of(many, epoch), strict=True):
            assert torch.equal(a, b)


def test_epochs_and_seeds_differ_and_repeat(folder):
    stream = streamed(folder)
    first, second = (all_of(stream, epoch, batch=41) for epoch in (0, 1))
    assert sorted(first[2].tolist()) == sorted(second[2].tolist()) == list(range(41))
    assert not torch.equal(first[2], second[2])
    crops = [images[rows.argsort()] for images, _, rows in (first, second)]
    assert not any(torch.equal(a, b) for a, b in zip(*crops, strict=True))
    assert torch.equal(all_of(stream, 0, batch=41)[0], first[0])
    other = all_of(streamed(folder), 0, batch=41, seed=6)
    assert torch.equal(all_of(stream, 0, batch=41, seed=6)[0], other[0])
    assert not torch.equal(other[2], first[2])


def test_a_small_last_batch_is_left_out_of_training(folder):
    sizes = [len(part.images) for part in streamed(folder).batches(0, 16)]
    assert sizes == [16, 16, 9]
    assert [len(part.images) for part in streamed(folder).batches(0, 20)] == [20, 20]
    assert [len(part.images) for part in streamed(folder, train=False).batches(0, 8)] == [8, 2]


def test_copies_are_crops_of_their_own_from_one_decoding(folder, monkeypatch):
    read = []
    plain = deepaa.data.decoding.read_image
    monkeypatch.setattr(
        deepaa.data.decoding,
        "read_image",
        lambda path, *how: (read.append(path), plain(path, *how))[1],
    )
    batch = next(streamed(folder).batches(0, 8, copies=4))
    assert len(set(read)) == len(read) == 8
    rows = batch.rows.view(4, 8)
    assert torch.equal(rows, rows[0] + (torch.arange(4)[:, None] << 40))
    assert torch.equal(batch.labels.view(4, 8), batch.labels[:8].expand(4, 8))
    images = batch.images.view(4, 8, -1)
    assert not any(torch.equal(images[0, i], images[c, i]) for c in range(1, 4) for i in range(8))
    monkeypatch.undo()
    once = next(streamed(folder).batches(0, 8))
    assert torch.equal(once.images, batch.images[:8])  # the first copy is what there is without


@pytest.mark.parametrize("world", [2, 3])
def test_shares_of_processes_make_up_the_batch(folder, world):
    whole = list(streamed(folder).batches(2, 8, copies=2))
    stream = streamed(folder)
    shares = [list(stream.batches(2, 8, copies=2, rank=r, world=world)) for r in range(world)]
    for batch, *parts in zip(whole, *shares, strict=True):
        for place in range(3):
            joined = torch.cat([part[place] for part in parts])
            assert torch.equal(joined, batch[place])


def test_global_generators_stay_as_they_are(folder):
    before = torch.get_rng_state()
    stream = streamed(folder, workers=1)
    all_of(stream)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_second_epoch_ends_the_first(folder):
    stream = streamed(folder, workers=1)
    first = stream.batches(0, 8)
    next(first)
    expected = all_of(streamed(folder), 1)
    for got, want in zip(all_of(stream, 1), expected, strict=True):
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="another one was begun"):
        next(first)
    assert torch.equal(all_of(stream, 1)[0], expected[0])  # workers come back


def test_what_workers_get_can_be_sent_to_them(folder):
    decoder = streamed(folder)._decoder
    again = pickle.loads(pickle.dumps(decoder)).files
    assert [again.path(i) for i in range(41)] == list(list_images(folder, "train").files)


def test_fingerprint_follows_names_lengths_and_labels(folder, tmp_path):
    tree = shutil.copytree(folder, tmp_path / "tree")
    seen = [streamed(folder).fingerprint]
    for options in ({}, {"crop": "centre"}, {"scan": False}):
        assert streamed(tree, **options).fingerprint == seen[0]  # wherever and however it is read
    seen.append(streamed(tree, train=False).fingerprint)
    file = tree / "train" / "dog" / "000.png"
    content = file.read_bytes()
    for change in (
        lambda: file.rename(file.with_name("x.png")),
        lambda: file.with_name("x.png").rename(tree / "train" / "cat" / "x.png"),
        lambda: (tree / "train" / "cat" / "x.png").write_bytes(content + b"\0"),
        lambda: (tree / "train" / "cat" / "x.png").unlink(),
    ):
        change()
        seen.append(streamed(tree).fingerprint)
    assert len(set(seen)) == 6
    (tree / "train" / "cat").rename(tree / "train" / "elk")  # other names, and labels change places
    (tree / "val" / "cat").rename(tree / "val" / "elk")
    assert streamed(tree).fingerprint not in seen


def test_a_sample_depends_on_the_files_alone(folder):
    reference = v2.Compose([v2.Resize(27, BICUBIC), v2.CenterCrop(SIZE), v2.PILToTensor()])
    pictures = [reference(picture) for picture in decoded(folder, "train")]
    first, labels = streamed(folder).sample(20)
    assert first.shape == (20, 3, SIZE, SIZE)
    for options in ({"crop": "centre"}, {"crop": "larger"}, {"workers": 2}):
        assert torch.equal(streamed(folder, **options).sample(20)[0], first)
    found = [[torch.equal(image, each) for each in pictures].index(True) for image in first]
    assert len(set(found)) == 20
    assert found != sorted(found)  # not the first class alone
    assert torch.equal(streamed(folder).labels[found], labels)
    images, every = streamed(folder).sample(1000)
    assert len(images) == len(every) == 41


# Bad files


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """300 images, one of them a web page."""
    small = picture(8, 8, 0)
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(150):
            small.save(tmp_path / "train" / name / f"{i:03}.png")
    (tmp_path / "train" / "b" / "007.png").write_text("<html>")
    return tmp_path


def test_bad_files_are_found_first_and_named(damaged):
    with pytest.raises(BadImagesError, match=r"1 of 300 files is bad.*b/007.png \(not an image\)"):
        streamed(damaged)


def test_bad_files_can_be_left_out(damaged):
    stream = streamed(damaged, on_bad_image="skip")
    assert len(stream) == 299
    assert [str(file.path) for file in stream.report.bad] == ["train/b/007.png"]
    assert stream.labels.bincount().tolist() == [150, 149]
    assert sorted(all_of(stream, batch=23)[2].tolist()) == list(range(299))


def test_too_many_bad_files_stop_in_any_case(damaged):
    for i in range(5):
        (damaged / "train" / "a" / f"{i:03}.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match="At most 3 of 300 may be skipped"):
        streamed(damaged, on_bad_image="skip")


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_scan_a_bad_file_stops_the_epoch(damaged, workers):
    stream = streamed(damaged, scan=False, workers=workers)
    with pytest.raises(BadImagesError, match=r"b/007\.png") as caught:
        all_of(stream, batch=50)
    assert len(caught.value.report.bad) == 1


def test_without_a_scan_a_bad_file_stops_a_sample(damaged):
    with pytest.raises(BadImagesError, match=r"1 of 300 files is bad.*b/007\.png"):
        streamed(damaged, scan=False).sample(300)


@pytest.mark.slow
def test_a_worker_that_is_killed_stops_the_epoch_with_a_reason(damaged):
    (damaged / "train" / "b" / "007.png").unlink()
    stream = streamed(damaged, workers=2)
    batches = stream.batches(0, 4)
    next(batches)
    for process in stream._loader._iterator._workers:
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"decodes images died.*fewer than 2 workers"):
        list(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "middle"}, "crop should be one of 'random', 'centre', 'larger', got"),
        ({"on_bad_image": "skip", "scan": False}, "on_bad_image='skip' needs a scan"),
        ({"on_bad_image": "hide"}, "on_bad_image should be one of 'stop', 'skip', got 'hide'"),
        ({"workers": -1}, "workers should be 0 or more, got -1"),
    ],
)
def test_settings_without_meaning_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        streamed(folder, **options)


def test_folders_that_are_none_are_refused(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        streamed(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="size should be in"):
        StreamedImages(folder, 0, train=True)
    with pytest.raises(ValueError, match="has no test part"):
        streamed(folder / "train", train=False)
    with pytest.raises(ValueError, match="batch 0, copies 1"):
        streamed(folder).batches(0, 0)
    with pytest.raises(ValueError, match="no such share"):
        streamed(folder).batches(0, 8, rank=2, world=2)


# Large photos, and who waits for whom


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG photos of up to 50 times the side of the network's images."""
    root = tmp_path_factory.mktemp("large")
    for i in range(12):
        place = root / "train" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        width, height = 150 + 100 * i, 1250 - 90 * i
        picture(width, height, i).save(place / f"{i:02}.jpg")
    return root


REDUCED = Reading(reduce=True)


@pytest.mark.parametrize("crop", ["random", "centre", "larger"])
def test_reduced_photos_show_the_same_parts(large, crop):
    whole = all_of(streamed(large, crop=crop), batch=6)
    small = all_of(streamed(large, crop=crop, reading=REDUCED), batch=6)
    assert torch.equal(whole[2], small[2])
    difference = (whole[0].int() - small[0].int()).abs().float()
    assert 0 < difference.mean() < 2.5
    assert difference.mean((1, 2, 3)).max() < 6
    one, other = (streamed(large, reading=how).sample(12)[0] for how in (DEFAULT_READING, REDUCED))
    assert 0 < (one.int() - other.int()).abs().float().mean() < 2.5


def test_reduced_photos_do_not_depend_on_workers_processes_or_copies(large):
    alone = streamed(large, reading=REDUCED)
    many = streamed(large, reading=REDUCED, workers=2)
    for a, b in zip(all_of(alone, 1), all_of(many, 1), strict=True):
        assert torch.equal(a, b)
    whole = list(alone.batches(2, 6, copies=3))
    shares = [list(many.batches(2, 6, copies=3, rank=r, world=2)) for r in range(2)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
    first = next(alone.batches(2, 6))
    assert torch.equal(first.images, whole[0].images[:6])


def test_reduced_photos_take_less_time(large):
    seconds = {}
    for reading in (DEFAULT_READING, REDUCED, DEFAULT_READING, REDUCED):
        stream = streamed(large, crop="centre", reading=reading)
        all_of(stream, batch=6)
        found = 1 / stream.decoding_rate().per_second
        seconds[reading] = min(found, seconds.get(reading, 9.0))
    assert seconds[REDUCED] < 0.8 * seconds[DEFAULT_READING]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rate_of_decoding_tells_who_waits(large, workers):
    stream = streamed(large, workers=workers)
    assert stream.decoding_rate() is None
    all_of(stream, batch=6)
    hungry = stream.decoding_rate()
    assert hungry.images == 12
    assert hungry.per_second > 0
    for _ in stream.batches(1, 6):
        time.sleep(0.4)  # a slow network
    fed = stream.decoding_rate()
    assert fed.busy < 0.5 if workers else fed.busy == hungry.busy == 1


def test_long_epochs_are_watched(large, monkeypatch):
    monkeypatch.setattr(streaming, "SHOW_SECONDS", 0)
    stream, seen = streamed(large), []
    stream.watch = lambda given, total: seen.append((given, total, stream.decoding_rate()))
    all_of(stream, batch=5)
    assert [each[:2] for each in seen] == [(5, 10), (10, 10)]
    assert [each[2].images for each in seen] == [5, 10]
    assert 0 < seen[0][2].seconds < seen[1][2].seconds


# CUDA


@pytest.mark.gpu
def test_batches_on_cuda_are_those_of_the_cpu(folder):
    reading = Reading(decoder="pillow")
    host, device = streamed(folder), streamed(folder, workers=2, device="cuda", reading=reading)
    waste = torch.randn(2000, 2000, device="cuda")
    for a, b in zip(host.batches(0, 8, copies=2), device.batches(0, 8, copies=2), strict=True):
        assert all(part.is_cuda for part in b)
        waste = waste @ waste  # keeps the current stream busy while the next batch is copied
        assert all(torch.equal(x, y.cpu()) for x, y in zip(a, b, strict=True))
