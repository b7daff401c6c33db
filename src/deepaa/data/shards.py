"""Shards of WebDataset: tar archives whose files make a sample where their names begin alike."""

from __future__ import annotations

import errno
import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from deepaa.data.columns import COLUMNS, Columns
from deepaa.data.image_file import SUFFIXES, listed, shown
from deepaa.data.image_tree import MOST_BYTES
from deepaa.data.listing import PART_NAMES, Listing, known_label, label_text
from deepaa.files import Member, open_regular, open_tar, plural, tar_members

SUFFIX = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Archives in which no file can be found without unpacking all before it."""
UNPACK = {"bz2": "bunzip2", "xz": "unxz", "zst": "unzstd"}
"""Programs that make a plain archive of others than .gz."""
MOST_SHARDS = 100_000
MOST_LABEL = 1 << 20
"""Bytes of a file that says the class of a sample."""
LABELS = ("cls", "label", "class", "cls.txt", "label.txt", "class.txt", "target")
"""What such files end with, the first one that is there; then JSON with such a key."""
JSON = "json:"
"""Before the name of a key, as json:species."""


class ShardStore:
    """Files in archives, by archive, place and length."""

    def __init__(self, shards: Sequence[Path], members: Sequence[tuple[int, int, int]]) -> None:
        """`members` are the number of the shard, the offset and the size of each file."""
        self._shards = [str(path) for path in shards]
        self._members = np.array(members, dtype=np.int64).reshape(-1, 3)

    def content(self, place: int) -> bytes:
        """The bytes of a file; OSError where the archive is gone or shorter than it was."""
        shard, offset, size = self._members[place].tolist()
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"{size:,} bytes; at most {MOST_BYTES:,} are read")
        with os.fdopen(open_regular(self._shards[shard], links=True), "rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise OSError(errno.EIO, "the shard is shorter than it was")
        return data

    def lengths(self, places: Sequence[int]) -> list[int]:
        """The bytes of these files."""
        found: list[int] = self._members[list(places), 2].tolist()
        return found


# Which shards there are


def is_shards(source: str) -> bool:
    """Whether this is an archive, a pattern of archives, or a folder of them."""
    if source.lower().endswith((SUFFIX, *PACKED)):
        return True
    path = Path(source)
    return path.is_dir() and bool(_in_folder(path, SUFFIX, *PACKED)) and not _has_classes(path)


def is_pattern(source: str) -> bool:
    """Whether a name stands for several shards."""
    has_sign = any(sign in source for sign in "*?[{")
    is_archive = source.lower().endswith((SUFFIX, *PACKED))
    return is_archive and has_sign and not Path(source).exists()


def find_shards(source: str) -> tuple[Path, list[Path]]:
    """The folder that has all shards, and the shards of a folder, a pattern or a file, sorted."""
    path = Path(source)
    if source.lower().endswith(PACKED) and not path.is_dir():
        raise ValueError(f"{shown(source)}: {_unpack_first([source])}")
    if path.is_dir():
        if not (plain := _in_folder(path, SUFFIX)):
            packed = [shard.name for shard in sorted(_in_folder(path, *PACKED))]
            raise ValueError(
                f"{shown(source)}: {plural(len(packed), 'packed archive')}, as {shown(packed[0])}; "
                f"{_unpack_first(packed)}"
            )
        return path, sorted(plain)
    if not is_pattern(source):
        if not path.exists():
            raise FileNotFoundError(f"{shown(source)}: no such file")
        return path.parent, [path]
    found: list[Path] = []
    names = list(itertools.islice(braces(source), MOST_SHARDS + 1))
    if len(names) > MOST_SHARDS:
        raise ValueError(f"{shown(source)}: more than {MOST_SHARDS:,} shards")
    for name in names:
        if any(sign in name for sign in "*?["):
            found += [Path(each) for each in sorted(glob.glob(name))]  # noqa: PTH207  # absolute
        elif Path(name).is_file():
            found.append(Path(name))
        else:
            raise FileNotFoundError(f"{shown(source)}: no shard {shown(name)}")
    if not found:
        raise FileNotFoundError(f"{shown(source)}: no shards")
    return Path(os.path.commonpath([shard.parent for shard in found])), found


def braces(pattern: str) -> Iterator[str]:
    """What a pattern with {000..127} or {a,b} stands for, as in a shell."""
    inner = re.search(r"\{([^{}]*)\}", pattern)
    if inner is None:
        yield pattern
        return
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    if numbers := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inner[1]):
        low, high = numbers.groups()
        width = len(low) if low.startswith("0") or len(low) == len(high) else 0
        words: Iterator[str] = (f"{n:0{width}}" for n in range(int(low), int(high) + 1))
    else:
        words = iter(inner[1].split(","))
    for word in words:
        yield from braces(f"{before}{word}{after}")


def _unpack_first(names: Sequence[str]) -> str:
    """What to say of archives in which no file can be found."""
    endings = {name.lower().rpartition(".")[2] for name in names}
    programs = sorted({UNPACK.get(ending, "gunzip") for ending in endings})
    return (
        f"shards must be plain .tar: unpack with {' and '.join(programs)} first (and with tar -xf "
        "what holds class folders)"
    )


def _in_folder(folder: Path, *suffixes: str) -> list[Path]:
    """Archives in a folder and in the folders of parts in it; class folders are not looked into."""
    places = [folder]
    with os.scandir(folder) as entries:
        places += [Path(e.path) for e in entries if e.name.lower() in PART_NAMES and e.is_dir()]
    found = (path for place in places for path in place.glob("*.*"))
    named = (path for path in found if path.name.lower().endswith(suffixes))
    return [path for path in named if not path.name.startswith(".") and path.is_file()]


def _has_classes(folder: Path) -> bool:
    """Whether images lie in folders below it."""
    return any(name.lower().endswith(SUFFIXES) for *_, names in os.walk(folder) for name in names)


def shard_part(shard: Path) -> str | None:
    """The part that a shard's name or folder says it is of; None where it says nothing."""
    words = [*re.split(r"[^a-z]+", shard.stem.lower()), shard.parent.name.lower()]
    return next((PART_NAMES[word] for word in words if word in PART_NAMES), None)


# What is in them


class Sample(NamedTuple):
    """The image of a sample, and what is said of it."""

    image: Member
    label: str | None
    group: str | None


def list_shards(source: str, split: str, columns: Columns, groups: str | None = None) -> Listing:
    """The samples of all shards that a split needs; images are not opened.

    Args:
        split: "train" leaves shards of other parts unread.
        columns: What files of a sample end with, by what they hold; json:KEY is a key of a JSON.
        groups: What says the group of a sample, likewise.
    """
    root, shards = find_shards(source)
    parts = [shard_part(shard) for shard in shards]
    if None in parts and any(parts):
        nameless = shown(shards[parts.index(None)].name)
        raise ValueError(
            f"{shown(source)}: {nameless} is of no part, as others are by their names: train, test"
        )
    if split == "train" and "train" in parts:
        shards = [shard for shard, part in zip(shards, parts, strict=True) if part == "train"]
    given = columns if groups is None else {**columns, "group": groups}
    reader = _Reader(given)
    if Path(source).is_dir():
        reader.ignored["packed archive"] = len(_in_folder(root, *PACKED))
    files, labels, members = list[Path](), list[str | None](), list[tuple[int, int, int]]()
    found_groups, found_parts = list[str | None](), list[str | None]()
    for number, shard in enumerate(shards):
        part = shard_part(shard)
        for sample in _samples(shard, reader, needs_labels=part in (None, "train")):
            files.append(shard / sample.image.name)
            labels.append(sample.label)
            found_groups.append(sample.group)
            found_parts.append(part)
            members.append((number, sample.image.offset, sample.image.size))
    if not files:
        raise ValueError(f"{shown(source)}: no images in {plural(len(shards), 'shard')}")
    return Listing(
        shown(source),
        root,
        files,
        labels,
        lambda i: shown(files[i].relative_to(root)),
        None if None in found_parts else [str(part) for part in found_parts],
        found_groups if any(group is not None for group in found_groups) else None,
        ShardStore(shards, members),
        dict(+reader.ignored),
    )


def _samples(shard: Path, reader: _Reader, *, needs_labels: bool) -> Iterator[Sample]:
    """The samples of a shard; what is wrong with it is a ValueError that begins with its path."""
    try:
        with open_tar(shard) as file:
            samples: dict[str, dict[str, Member]] = {}
            for member in tar_members(file):
                reader.sort_in(member, samples)
            yield from reader.read(file, samples, needs_labels=needs_labels)
    except OSError as error:
        raise ValueError(f"{shown(shard)}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{shown(shard)}: {error}") from error


class _Reader:
    """Knows which files of a sample are the image and its label, the same in all shards."""

    def __init__(self, given: Columns) -> None:
        self.ignored: Counter[str] = Counter()
        self._image, self._label = given.get("image"), given.get("label")
        self._group, self._finds_groups = given.get("group") or None, "group" not in given

    def sort_in(self, member: Member, samples: dict[str, dict[str, Member]]) -> None:
        """Add a file to its sample: what its name has before its first dot."""
        folder, slash, name = member.name.rpartition("/")
        key, dot, ending = name.partition(".")
        if name.startswith("."):
            self.ignored["hidden"] += 1
        elif not dot:
            self.ignored["outside a sample"] += 1
        else:
            sample = samples.setdefault(f"{folder}{slash}{key}", {})
            if ending.lower() in sample:
                raise ValueError(f"{shown(member.name)} is there twice")
            sample[ending.lower()] = member

    def read(
        self, file: IO[bytes], samples: Mapping[str, dict[str, Member]], *, needs_labels: bool
    ) -> Iterator[Sample]:
        """The samples that have an image; those that lack it or a needed label are a ValueError."""
        images = {key: self._image_of(key, files) for key, files in samples.items()}
        label = self._label_of(file, samples, images, needs_labels=needs_labels)
        self._refuse_halves(samples, images, label, needs_labels=needs_labels)
        wants_json = any(name and name.startswith(JSON) for name in (label, self._group))
        for key, files in samples.items():
            image = images[key]
            if image is None:
                self.ignored["sample without image"] += 1
                continue
            try:
                keys = _json(file, files["json"]) if wants_json and "json" in files else {}
                is_key = label.startswith(JSON)
                is_there = label.removeprefix(JSON) in keys if is_key else label.lower() in files
                said = _value(file, label, files, keys) if is_there or needs_labels else None
                found = label_text(said) if needs_labels else known_label(said)
                group = None if self._group is None else _value(file, self._group, files, keys)
            except ValueError as error:
                raise ValueError(f"sample {shown(key)}: {error}") from error
            yield Sample(image, found, None if group is None else str(group).strip() or None)

    def _image_of(self, key: str, files: Mapping[str, Member]) -> Member | None:
        if self._image is not None:
            return files.get(self._image.lower())
        found = [ending for ending in files if f".{ending}".endswith(SUFFIXES)]
        if len(found) > 1:
            raise ValueError(
                f"sample {shown(key)} has {len(found)} images: {listed(found)}; say which with "
                "--columns image=ENDING (columns='image=ENDING' in Python)"
            )
        return files[found[0]] if found else None

    def _label_of(
        self,
        file: IO[bytes],
        samples: Mapping[str, dict[str, Member]],
        images: Mapping[str, Member | None],
        *,
        needs_labels: bool,
    ) -> str:
        """What says the classes, as the first sample shows: the ending of a file, or json:KEY."""
        key = next((key for key, image in images.items() if image is not None), None)
        if self._label is not None or key is None:
            return self._label or LABELS[0]
        files = samples[key]
        keys = _json(file, files["json"]) if "json" in files else {}
        ways = [ending for ending in LABELS if ending in files]
        ways += [f"{JSON}{name}" for name in COLUMNS["label"] if name in keys]
        if not ways and not needs_labels:
            return LABELS[0]
        if not ways:
            raise ValueError(
                f"images without labels: sample {shown(key)} has {listed(sorted(files))}; labels "
                f"are files that end with .{', .'.join(LABELS[:3])}, or .json with the key label; "
                "others are named with --columns label=ENDING or label=json:KEY"
            )
        self._label = ways[0]
        own = [f"{JSON}{name}" for name in COLUMNS["group"] if name in keys]
        if self._finds_groups:
            self._group = self._group or next(iter(own), None)
        return self._label

    def _refuse_halves(
        self,
        samples: Mapping[str, dict[str, Member]],
        images: Mapping[str, Member | None],
        label: str,
        *,
        needs_labels: bool,
    ) -> None:
        """Raise ValueError where samples have an image and no label, or a label and no image."""
        is_key, ending = label.startswith(JSON), "json" if label.startswith(JSON) else label.lower()
        unlabelled = [key for key, files in samples.items() if images[key] and ending not in files]
        empty = [key for key, files in samples.items() if not images[key] and ending in files]
        for keys, lack in ((unlabelled, f"no label .{ending}"), (empty, "a label and no image")):
            if keys is unlabelled and not needs_labels:
                continue
            if keys and not (is_key and keys is empty):  # a JSON may say anything
                which = listed(keys) if len(keys) < len(samples) else f"as {shown(keys[0])}"
                raise ValueError(
                    f"{len(keys):,} of {plural(len(samples), 'sample')} have {lack}: {which}; the "
                    f"first has {listed(sorted(samples[keys[0]]))}"
                )


def _value(
    file: IO[bytes], name: str, files: Mapping[str, Member], keys: Mapping[str, Any]
) -> object:
    """What a file of a sample or a key of its JSON says."""
    if name.startswith(JSON):
        key = name.removeprefix(JSON)
        if key not in keys:
            raise ValueError(f"no {shown(key)} in its .json, which has {listed(list(keys))}")
        value: object = keys[key]
        return value
    if name.lower() not in files:
        raise ValueError(f"no file .{shown(name)}; it has {listed(sorted(files))}")
    return _bytes(file, files[name.lower()]).decode("utf-8", "replace")


def _json(file: IO[bytes], member: Member) -> Mapping[str, Any]:
    try:
        found = json.loads(_bytes(file, member))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(member.name)} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{shown(member.name)} is a {type(found).__name__}, expected an object")
    return found


def _bytes(file: IO[bytes], member: Member) -> bytes:
    if member.size > MOST_LABEL:
        size = f"{member.size:,} bytes; at most {MOST_LABEL:,}"
        raise ValueError(f"{shown(member.name)} has {size}, for a label")
    file.seek(member.offset)
    return file.read(member.size)
