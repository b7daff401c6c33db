"""Compiled and CUDA transforms give the bytes of the plain one."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from pictures import BLANK, STAMPS, noise, stamps
from torch import Tensor
from torchvision import tv_tensors

from deepaa.ops.space import CIFAR, IMAGENET, Operation
from deepaa.policy.policy import Policy
from deepaa.transforms import transform as transforms
from deepaa.transforms.transform import DeepAutoAugment

POLICY = Policy.uniform(CIFAR, 3)
INVERT = Policy.always(Operation("invert"))
IDENTITY = Policy.identity()


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    transform = DeepAutoAugment(POLICY, seed=7)
    fast = torch.compile(transform, fullgraph=True)
    images, index = noise(8, 3, 32, 32), torch.arange(8)
    want = transform(images, index=index)
    assert torch.equal(fast(images, index=index), want)
    # the rest of the forms through a compiler that takes no time
    traced = torch.compile(transform, fullgraph=True, backend="aot_eager")
    out, labels = traced((images, index), index=index)
    assert torch.equal(out, want)
    assert torch.equal(labels, index)
    layout = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(traced(layout, index=index), want)
    floats = (images / 255).requires_grad_()
    assert torch.equal(traced(floats, index=index), transform(floats, index=index))
    for i in range(3):
        assert torch.equal(traced(images[i], index=i), want[i])
    transform.set_epoch(1)
    later = fast(images, index=index)
    assert not torch.equal(later, want)
    assert torch.equal(later, transform(images, index=index))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7])
def test_compiled_streams_equal_eager_without_recompiling(seed: int | None) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = DeepAutoAugment(STAMPS, seed=seed), DeepAutoAugment(STAMPS, seed=seed)
    images = BLANK.expand(4, 1, 1, 8).clone()

    def twice(x: Tensor) -> Tensor:
        return torch.cat([compiled(x), compiled(x)])  # must not become one call

    fast = torch.compile(twice, fullgraph=True)
    torch.manual_seed(1)
    want = [eager(images) for _ in range(8)]
    torch.manual_seed(1)
    got = torch.cat([fast(images) for _ in range(4)])
    assert stamps(got) == stamps(torch.cat(want))
    assert len(set(stamps(got))) == 32
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_compiled_transforms_do_not_mix_or_stay_alive() -> None:
    torch._dynamo.reset()
    a, b = DeepAutoAugment(INVERT), DeepAutoAugment(IDENTITY)
    image = noise(2, 3, 8, 8)
    assert torch.equal(torch.compile(a, fullgraph=True)(image), 255 - image)
    assert torch.equal(torch.compile(b, fullgraph=True)(image), image)
    assert torch.equal(torch.compile(copy.deepcopy(a), fullgraph=True)(image), 255 - image)
    handle = a._handle
    torch._dynamo.reset()
    del a
    gc.collect()
    assert handle not in transforms._TRANSFORMS


# On the GPU


@pytest.mark.gpu
def test_cuda_equals_cpu_for_every_kind() -> None:
    for space, shape in ((CIFAR, (3, 32, 32)), (IMAGENET, (3, 64, 48)), (CIFAR, (1, 28, 28))):
        transform = DeepAutoAugment(Policy.uniform(space, 4), seed=3)
        images, index = noise(64, *shape), torch.arange(64)
        want = transform(images, index=index)
        gpu = images.cuda()
        for number in (index, index.cuda()):
            out = transform(gpu, index=number)
            assert out.device == gpu.device
            assert torch.equal(out.cpu(), want)
        assert torch.equal(transform(images, index=index.cuda()), want)
        # a division by 255 may differ in its last bit between devices, the 8 bits may not
        floats = transform((images / 255).cuda(), index=index)
        assert torch.equal((floats * 255).round().byte().cpu(), want)
        assert torch.allclose(floats.cpu(), transform(images / 255, index=index), rtol=1e-6, atol=0)
        assert torch.equal(transform(gpu[3], index=3).cpu(), want[3])
        wrapped = transform(tv_tensors.Image(gpu), index=index)
        assert type(wrapped) is tv_tensors.Image
        assert torch.equal(wrapped.cpu(), want)
        assert torch.equal(copy.deepcopy(transform)(gpu, index=index).cpu(), want)
        assert torch.equal(pickle.loads(pickle.dumps(transform))(gpu, index=index).cpu(), want)
        assert torch.equal(transform.cuda()(gpu, index=index).cpu(), want)


@pytest.mark.gpu
def test_cuda_streams_equal_cpu() -> None:
    images = noise(32, 3, 32, 32)
    for seed in (None, 5):
        for_cpu, for_gpu = DeepAutoAugment(POLICY, seed=seed), DeepAutoAugment(POLICY, seed=seed)
        torch.manual_seed(2)
        want = [for_cpu(images) for _ in range(3)]
        torch.manual_seed(2)
        for out in want:
            assert torch.equal(for_gpu(images.cuda()).cpu(), out)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [None, 5])
def test_cuda_batches_never_make_the_host_wait(seed: int | None) -> None:
    policy = Policy.uniform(CIFAR, 3)
    transform = DeepAutoAugment(policy, seed=seed).cuda()
    images = noise(64, 3, 32, 32).cuda()
    floats, labels = images / 255, torch.zeros(64, dtype=torch.int64, device="cuda")
    index, gpu_index = torch.arange(64), torch.arange(64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for epoch in range(3):
            transform.set_epoch(epoch)
            transform(images)
            transform({"image": floats, "label": labels})
            if seed is not None:
                transform(images, index=index)
                transform(images, labels, index=gpu_index)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_cuda_compiled_equals_eager(mode: str) -> None:
    """CUDA graphs too: they must not replay the first draw for ever."""
    torch._dynamo.reset()
    images = noise(16, 3, 32, 32).cuda()
    for seed in (None, 5):
        eager, compiled = DeepAutoAugment(POLICY, seed=seed), DeepAutoAugment(POLICY, seed=seed)
        fast = torch.compile(lambda x, f=compiled: f(x).float().mul_(2), fullgraph=True, mode=mode)
        torch.manual_seed(1)
        want = [eager(images).float() * 2 for _ in range(6)]
        torch.manual_seed(1)
        for out in want:
            assert torch.equal(fast(images).clone(), out)
