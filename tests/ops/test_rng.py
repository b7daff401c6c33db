"""keys.py: the hash against published numbers, tensors against plain Python, and its quality."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from deepaa.ops import rng

MASK = 2**64 - 1
WORDS = st.integers(-(2**63), 2**63 - 1)


def unmix(z: int) -> int:
    """The number whose SplitMix64 finaliser is `z`: each step undone."""

    def unshift(value: int, bits: int) -> int:
        found = value
        for _ in range(64 // bits + 1):
            found = value ^ (found >> bits)
        return found

    z = unshift(z, 31)
    z = unshift(z * pow(0x94D049BB133111EB, -1, 2**64) & MASK, 27)
    return unshift(z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK, 30)


def test_stream_is_splitmix64() -> None:
    # the first outputs of SplitMix64 seeded with 1234567, as published with many implementations
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    key = unmix(1234567)
    assert [rng.hash_int(key, counter) for counter in range(5)] == expected


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        (0, 0, 16294208416658607535),
        (0, 1, 7960286522194355700),
        (1, 0, 13830413928045401970),
        (-1, 255, 17967653325247932240),
        (2**63 - 1, 256 * 999 + 255, 294736805980242532),
    ],
)
def test_known_answers(key: int, counter: int, expected: int) -> None:
    assert rng.hash_int(key, counter) == expected


@given(WORDS, st.integers(0, 2**40))
def test_tensor_and_int_hash_agree(key: int, counter: int) -> None:
    found = rng.hash_keys(torch.tensor([key]), torch.tensor([counter]))
    assert found.item() & MASK == rng.hash_int(key, counter)


@given(WORDS)
def test_a_key_and_its_unsigned_twin_are_one(key: int) -> None:
    assert rng.hash_int(key, 7) == rng.hash_int(key & MASK, 7)


def test_words_follow_the_layout() -> None:
    keys = torch.tensor([5, -9, 2**62])
    layers = torch.tensor([0, 3, 999])
    choice, gate, uniform = (part[:, layers] for part in rng.draw_words(keys, 1000, 4))
    assert uniform.dtype == torch.float32
    for n, key in enumerate(keys.tolist()):
        for k, layer in enumerate(layers.tolist()):
            assert choice[n, k] == rng.hash_int(key, layer * 256) >> 11
            assert gate[n, k] == rng.hash_int(key, layer * 256 + 1) >> 11
            for u in range(4):
                word = rng.hash_int(key, layer * 256 + 2 + u) >> 40
                assert uniform[n, k, u].item() == word / 2**24


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6), st.integers(0, 2**40))
def test_sample_key_and_sample_keys_agree(seed: int, epoch: int, index: int) -> None:
    key = rng.sample_key(seed, epoch, index)
    assert -(2**63) <= key < 2**63
    assert rng.sample_keys(seed, epoch, torch.tensor([index])).tolist() == [key]


def test_sample_keys_differ_over_seed_epoch_and_index() -> None:
    indices = torch.arange(10_000)
    parts = [rng.sample_keys(s, e, indices) for s in range(10) for e in range(10)]
    assert len(torch.cat(parts).unique()) == 1_000_000


def test_counters_of_one_key_do_not_collide() -> None:
    # a key's words are the mixed values of 10^6 different numbers, so they cannot repeat
    words = rng.hash_keys(torch.tensor([42]), torch.arange(1_000_000))
    assert len(words.unique()) == 1_000_000


def test_neighbouring_keys_and_counters_do_not_collide() -> None:
    words = rng.hash_keys(torch.arange(1000)[:, None], torch.arange(1000))
    assert len(words.unique()) == 1_000_000


@pytest.mark.parametrize("what", ["key", "counter"])
def test_one_bit_changes_half_of_the_word(what: str) -> None:
    n = 4000
    keys, counters = rng.fresh_keys(n, torch.device("cpu"), torch.Generator().manual_seed(1)), 77
    before = rng.hash_keys(keys, torch.tensor(counters))
    for bit in range(64 if what == "key" else 40):
        if what == "key":
            flip = torch.tensor(rng._signed(1 << bit))
            after = rng.hash_keys(keys ^ flip, torch.tensor(counters))
        else:
            after = rng.hash_keys(keys, torch.tensor(counters ^ (1 << bit)))
        changed = before ^ after
        for out in range(64):
            share = ((changed >> out) & 1).sum().item() / n
            # 64 x 64 shares are looked at: 6 sigma keeps chance out
            assert abs(share - 0.5) < 6 * 0.5 / math.sqrt(n), (bit, out)


@pytest.mark.parametrize("consecutive", ["keys", "counters"])
def test_words_are_uniform(consecutive: str) -> None:
    n = 256 * 2000
    one, many = torch.tensor([123]), torch.arange(n)
    words = rng.hash_keys(many, one) if consecutive == "keys" else rng.hash_keys(one, many)
    for shift in (56, 40, 11, 0):  # the bytes that choices and uniforms begin and end with
        counts = torch.bincount((words >> shift) & 255, minlength=256).double()
        chi2 = ((counts - 2000) ** 2 / 2000).sum().item()
        assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)


def test_uniforms_lie_in_the_half_open_interval_and_fill_it() -> None:
    u = rng.draw_words(torch.arange(200_000), 1, 5)[2]
    assert 0 <= u.min() < 1e-5
    assert 1 - 1e-5 < u.max() < 1
    assert abs(u.mean().item() - 0.5) < 5 / math.sqrt(12 * u.numel())
    # two numbers of one image are not correlated
    flat = u[:, 0].double()
    correlation = torch.corrcoef(flat.T)
    assert (correlation - torch.eye(5)).abs().max() < 5 / math.sqrt(len(flat))


def test_fresh_keys_follow_the_generator() -> None:
    def keys(seed: int) -> list[int]:
        return rng.fresh_keys(5, torch.device("cpu"), torch.Generator().manual_seed(seed)).tolist()

    assert keys(0) == keys(0)
    assert not set(keys(0)) & set(keys(1))
    torch.manual_seed(3)
    first = rng.fresh_keys(5, torch.device("cpu"))
    second = rng.fresh_keys(5, torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(first, rng.fresh_keys(5, torch.device("cpu")))
    assert not set(first.tolist()) & set(second.tolist())


def test_fresh_keys_of_zero_images() -> None:
    assert rng.fresh_keys(0, torch.device("cpu")).shape == (0,)
