"""`DeepAutoAugment` applies a policy to images of any kind and to what goes with them."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import get_worker_info

from deepaa.ops import (
    ForkSafeLock,
    Operation,
    apply_batch,
    fresh_keys,
    hash_int,
    sample_key,
    sample_keys,
    single_array,
    single_pil,
    single_tensor,
    to_device,
)
from deepaa.policy import Policy, load_policy
from deepaa.transforms import counts, inputs, left_behind, targets
from deepaa.transforms.value_range import WIDE_MODES, ValueRange
from deepaa.transforms.where import At, in_item, in_sample, naming

Array = np.ndarray[Any, Any]
_LOCK = ForkSafeLock()
SINGLE_CHANNELS = (1, 3)
"""Single uint8 images have a way of their own: equal, and without tensors for each."""


class DeepAutoAugment(nn.Module):
    """Applies a policy to the images of a sample, and moves boxes, masks and key points with them.

    Inputs are given as to a torchvision v2 transform: one or several, nested in tuples, lists and
    dicts. The structure comes back the same. An image keeps its kind:

    - a PIL image, RGB or L, or I;16 with a `value_range`;
    - a numpy array, uint8 (H, W), or uint8 or float (H, W, C): C is at most 4, or below H and W;
    - a tensor, uint8 or float, (C, H, W), or (N, C, H, W) where each image has its own draw;
    - a `tv_tensors.Image`, or a `tv_tensors.Video` (T, C, H, W), whose frames share one draw, or
      (N, T, C, H, W), where each video has its own.

    torchvision's `BoundingBoxes` (upright ones), `Mask` and `KeyPoints` move as the pixels of the
    image beside them; colour leaves them alone. Of a box that leaves the image, one without size is
    left, so that labels stay aligned: `v2.SanitizeBoundingBoxes` removes both. The page "Boxes and
    masks" of the documentation has the rules. All other leaves come back unchanged.

    Which leaves are images follows torchvision's rule: every PIL image and `tv_tensors.Image`. If
    there is none, it is the first array of the shapes above or tensor of three or more dimensions.
    Other arrays and tensors pass through.

    Who gets a draw of its own: each image of a batch (N, C, H, W), and each element of a list of
    images or of samples, such as `{"image": [pil, pil], "label": [0, 1]}` or
    `[{"image": pil, "label": 0}, ...]`. Images side by side in a tuple or a dict are views of one:
    they share a draw, and so do those at one place of several lists. A list of different things,
    such as `[image, label]` or an image and its mask, is one sample.

    Float images lie in [0, 1] and are rounded to 8 bits on the way: augment before you normalise.
    Other values, such as those of 16 bits, are taken where `value_range` declares them.
    No gradient flows back to them. Tensors come back contiguous, on the device they came from. The
    transform has no parameters. Like torchvision's it augments in `eval()` mode too: leave it out
    of the pipeline for validation.

    Randomness is one key per image. The same key gives the same pixels for every kind of input, on
    every device, compiled or not:

    - With `seed` and `index`, draws are a pure function of (seed, epoch, index): the same for any
      order, any number of workers, and after a restart. `AugmentedDataset` supplies the index.
    - With `seed` alone, the calls in an epoch are numbered. DataLoader workers mix in their own
      seed, which torch draws anew for each epoch. Ranks of a distributed run need different seeds.
    - Without `seed`, keys come from torch's global CPU generator, which DataLoader seeds in each
      worker.
    """

    def __init__(
        self,
        policy: Policy | str | Path,
        seed: int | None = None,
        *,
        operations: Sequence[Operation] = (),
        cutout_targets: str = "keep",
        mask_fill: float = 0,
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Load the policy if it is a name or a path.

        Args:
            policy: A policy, or the name or path of one for `load_policy`.
            seed: A whole number, for draws that can be repeated.
            operations: Your own operations that the policy's file names.
            cutout_targets: "keep" leaves what cutout covers; "hide" gives masks the fill there, and
                takes away key points, and boxes of which nothing else is left.
            mask_fill: The value of mask pixels that come from outside of the image.
            value_range: The darkest and the brightest value of images that are neither uint8 nor
                floats in [0, 1], such as (0, 65535). Changed images have 256 levels of it.
        """
        super().__init__()
        self.value_range = None if value_range is None else ValueRange.checked(value_range)
        self.target_settings = targets.TargetSettings.checked(cutout_targets, mask_fill)
        if isinstance(policy, str | Path):
            policy = load_policy(policy, operations)
        elif not isinstance(policy, Policy):
            raise TypeError(f"policy should be a Policy, a name or a path, got {policy!r}")
        elif operations:
            raise ValueError(
                "operations are for policies loaded by name or path; this one has its own"
            )
        self.policy = policy
        self.seed = None if seed is None else inputs.whole_number(seed, "seed", -(2**63), 2**64 - 1)
        self._start(torch.zeros(1, dtype=torch.int64, device="cpu"), [0, 0])

    def _start(self, epoch: Tensor, calls: list[int]) -> None:
        """Make the state that is not pickled as it is."""
        with torch.inference_mode(False):  # an inference tensor could not be changed outside
            # Shared memory, so that workers that live through many epochs see `set_epoch`. Not a
            # buffer: `.to("cuda")` would move it, and reading it would then wait for the device.
            self._epoch = inputs.shared_tensor(epoch)
            # Calls so far, and the epoch they belong to. A tensor, because compiled code would take
            # an int for a constant; it travels as a list, so that workers never share it.
            self._calls = torch.tensor(calls, device="cpu")
        self._handle = next(_HANDLES)
        _TRANSFORMS[self._handle] = self

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy without what belongs to this process."""
        state = {**self.__dict__, "_calls": self._calls.tolist()}
        del state["_handle"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; the copy gets an epoch of its own unless it went to a worker."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._start(state["_epoch"], state["_calls"])

    def extra_repr(self) -> str:
        """The policy and the seed."""
        declared = f", value_range={tuple(self.value_range)}" if self.value_range else ""
        return f"{self.policy}, seed={self.seed}{declared}"

    @property
    def epoch(self) -> int:
        """The epoch in force, here and in all workers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Change the draws of a seeded transform, and the phase of a policy with a schedule.

        Call it before each epoch's iteration; workers that are already running see it.
        """
        self._epoch.fill_(inputs.whole_number(epoch, "epoch", 0, 2**63 - 1))

    def forward(self, *sample: Any, index: Any = None) -> Any:
        """The sample with its images augmented.

        Args:
            index: The sample's number in the dataset; for a batch or a list of N, the N numbers.
                From one number the images of a list get draws of their own too. Needs a seed.
        """
        if not sample:
            raise TypeError("DeepAutoAugment needs an image, got no input")
        if index is not None and self.seed is None:
            raise ValueError(
                "index has no meaning without a seed: use DeepAutoAugment(policy, seed=0)"
            )
        given = sample[0] if len(sample) == 1 else sample
        if self.value_range is None and inputs.is_plain_image(given):
            return self._augment_one(given, self._key(index), self.epoch)  # the quick way
        if not torch.compiler.is_compiling():
            counts.refuse_uneven(given)
            for told in left_behind.told(given):
                warnings.warn(told, stacklevel=4)  # where the user calls this module
        if self.value_range is not None:
            return self.value_range.apply(lambda given: self._augment(given, index), given)
        return self._augment(given, index)

    def _augment(self, given: Any, index: Any) -> Any:
        """`forward` for one nested sample."""
        leaves, structure = tree_flatten(given, is_leaf=inputs.is_batch)
        at = partial(in_sample, given)
        with torch.no_grad():
            if lists := inputs.list_places(leaves):
                self._augment_lists(leaves, lists, lambda n: self._list_keys(n, index), at)
                return tree_unflatten(leaves, structure)
            places = inputs.image_places(leaves)
            images = [leaves[place] for place in places]
            n = inputs.batch_size(images)
            if torch.compiler.is_compiling():
                targets.refuse_compiled(leaves)
                images = self._augment_compiled(images, n, index)
            elif n is None:
                images = self._augment_sample(leaves, places, self._key(index), self.epoch, at)
            else:
                images = self._augment_batches(leaves, images, n, index, at)
        for place, image in zip(places, images, strict=True):
            leaves[place] = image
        return tree_unflatten(leaves, structure)

    def _augment_lists(
        self, leaves: list[Any], lists: list[int], keys_of: Callable[[int], list[int]], at: At
    ) -> None:
        """Replace the lists of images at these places: what is at one place in them has one key."""
        if torch.compiler.is_compiling():
            raise TypeError("a list of images cannot be compiled: give a batch (N, C, H, W)")
        items = list(zip(*(leaves[place] for place in lists), strict=True))
        keys = keys_of(len(items))
        done = [
            self._augment_item(item, keys[i], self.epoch, partial(in_item, at, lists, i, item))
            for i, item in enumerate(items)
        ]
        for place, column in zip(lists, zip(*done, strict=True), strict=True):
            leaves[place] = list(column)

    def _augment_item(self, item: Any, key: int, epoch: int, at: At) -> Any:
        """One of a list: an image, or a sample with any number of them."""
        leaves, structure = tree_flatten(item, is_leaf=inputs.is_batch)
        with naming(partial(at, 0)):
            lists = inputs.list_places(leaves)
            places = [] if lists else inputs.image_places(leaves)
        if lists:
            self._augment_lists(leaves, lists, lambda n: inputs.list_keys(key, n), at)
            return tree_unflatten(leaves, structure)
        images = self._augment_sample(leaves, places, key, epoch, at)
        for place, image in zip(places, images, strict=True):
            leaves[place] = image
        return tree_unflatten(leaves, structure)

    def _augment_sample(
        self, leaves: list[Any], places: list[int], key: int, epoch: int, at: At
    ) -> list[Any]:
        """The images of a flat sample under one key; its targets are replaced in place."""
        policy, images = self.policy, [leaves[place] for place in places]
        draw = partial(policy.draw_one, key, epoch)
        targets.move_sample(leaves, images, draw, policy.table, self.target_settings, at)
        done = []
        for place, image in zip(places, images, strict=True):
            with naming(partial(at, place)):
                done.append(self._augment_any(image, key, epoch))
        return done

    def _augment_any(self, image: Any, key: int, epoch: int) -> Any:
        """A single image, the frames of a video, or a batch that is one of a list."""
        if not isinstance(image, Tensor) or image.ndim == 3:
            return self._augment_one(image, key, epoch)
        keys = sample_keys(key, 0, torch.arange(len(image)))
        if inputs.is_video(image) and image.ndim == 4:
            keys = torch.full((len(image),), key, device="cpu")
        return inputs.rewrap(self._run(image, keys, epoch), image)

    # Keys

    def _list_keys(self, n: int, index: Any) -> list[int]:
        """The keys of the images of a list, equal to those of a batch (N, C, H, W)."""
        if index is not None and torch.as_tensor(index).ndim == 0:
            return inputs.list_keys(self._key(index), n)
        numbers = None if index is None else inputs.batch_numbers(index, n)
        like = torch.empty(n, device="cpu")
        return list(map(int, self._keys(like, numbers, self.epoch, self._calls)))

    def _key(self, index: Any) -> int:
        """The key of one image."""
        if index is not None:
            number = inputs.whole_number(index, "index of one image")
            return sample_key(self.seed or 0, self.epoch, number)
        if self.seed is None:
            return int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"))  # as `fresh_keys` does
        return sample_key(*_stream(self.seed, self.epoch, self._calls), 0)

    def _keys(self, images: Tensor, index: Tensor | None, epoch: int, calls: Tensor) -> Tensor:
        """(N,) keys on the device of the images."""
        if index is not None:
            if index.device.type == "cpu":
                index = to_device(index, images.device)
            return sample_keys(self.seed or 0, epoch, index.to(images.device))
        if self.seed is None:
            return fresh_keys(len(images), images.device)
        numbers = torch.arange(len(images), device=images.device)
        return sample_keys(*_stream(self.seed, epoch, calls), numbers)

    # Images

    def _augment_one(self, image: Any, key: int, epoch: int) -> Any:
        """A PIL image, an array or a (C, H, W) tensor."""
        if isinstance(image, Tensor):
            return inputs.rewrap(self._augment_tensor(image.as_subclass(Tensor), key, epoch), image)
        if isinstance(image, np.ndarray):
            return self._augment_array(image, key, epoch)
        if self.value_range is not None and image.mode in WIDE_MODES:
            augment = partial(self._augment_array, key=key, epoch=epoch)
            return self.value_range.apply_pil(augment, image)
        return single_pil(image, self.policy.draw_one(key, epoch), self.policy.table)

    def _augment_tensor(self, image: Tensor, key: int, epoch: int) -> Tensor:
        is_single = image.dtype == torch.uint8 and image.device.type == "cpu"
        if is_single and len(image) in SINGLE_CHANNELS:
            return single_tensor(image, self.policy.draw_one(key, epoch), self.policy.table)
        keys = to_device(torch.tensor([key], device="cpu"), image.device)
        return self._run(image[None], keys, epoch)[0]

    def _augment_array(self, image: Array, key: int, epoch: int) -> Array:
        pixels = image if image.ndim == 3 else image[:, :, None]
        if pixels.dtype == np.uint8 and pixels.shape[2] in SINGLE_CHANNELS and pixels.size:
            return single_array(image, self.policy.draw_one(key, epoch), self.policy.table)
        # a copy, as torch refuses mirrored arrays and swapped bytes, and warns of read-only arrays
        kind = pixels.dtype.newbyteorder("=")
        tensor = torch.from_numpy(np.array(pixels.transpose(2, 0, 1), kind, order="C"))
        inputs.check_shape(tensor)
        out = self._augment_tensor(tensor, key, epoch).permute(1, 2, 0).numpy()
        return np.ascontiguousarray(out).reshape(image.shape)

    def _augment_batches(
        self, leaves: list[Any], images: list[Tensor], n: int, index: Any, at: At
    ) -> list[Tensor]:
        numbers = None if index is None else inputs.batch_numbers(index, n)
        epoch = self.epoch
        keys = self._keys(images[0], numbers, epoch, self._calls)
        policy, settings = self.policy, self.target_settings

        def draws() -> list[targets.Steps]:
            return [policy.draw_one(key, epoch) for key in keys.tolist()]

        targets.move_batch(leaves, images, draws, policy.table, settings, at)
        return [inputs.rewrap(self._run(image, keys, epoch), image) for image in images]

    def _augment_compiled(self, images: list[Tensor], n: int | None, index: Any) -> list[Tensor]:
        """The same through opaque operators: a compiler could not see the epoch change inside."""
        if index is not None:
            listed = torch.as_tensor(index).view(1) if n is None else index
            index = inputs.batch_numbers(listed, n or 1)
        batches = [image.detach() if image.ndim == 4 else image.detach()[None] for image in images]
        keys = _compiled_keys(batches[0], index, self._epoch, self._calls, self._handle)
        done = [_compiled_run(batch, keys, self._epoch, self._handle) for batch in batches]
        return [out if n is not None else out[0] for out in done]

    def _run(self, images: Tensor, keys: Tensor, epoch: int) -> Tensor:
        """(N, C, H, W), or videos (N, T, C, H, W), under the draws of the keys: new, contiguous."""
        plain = images.detach().as_subclass(Tensor)
        if plain.ndim == 5:
            keys, plain = keys.repeat_interleave(plain.shape[1]), plain.flatten(0, 1)
        draw = self.policy.draw(keys.to(images.device), epoch)
        return apply_batch(plain, draw, self.policy.table).contiguous().view(images.shape)


# Compiled graphs carry no Python objects, so they name a transform by number.
_HANDLES = itertools.count(1)
_TRANSFORMS: weakref.WeakValueDictionary[int, DeepAutoAugment] = weakref.WeakValueDictionary()
# A CUDA graph would replay the keys and the phase of its first call for ever.
_TAGS = (torch.Tag.cudagraph_unsafe,)


@torch.library.custom_op("deepaa::keys", mutates_args=("calls",), tags=_TAGS)
def _compiled_keys(
    images: Tensor, index: Tensor | None, epoch: Tensor, calls: Tensor, transform: int
) -> Tensor:
    # `calls` counts as changed in every case, so that no compiler merges two calls into one
    return _TRANSFORMS[transform]._keys(images, index, int(epoch), calls)


@_compiled_keys.register_fake
def _(images: Tensor, index: Tensor | None, epoch: Tensor, calls: Tensor, transform: int) -> Tensor:
    return images.new_empty(images.shape[0], dtype=torch.int64)


@torch.library.custom_op("deepaa::augment", mutates_args=(), tags=_TAGS)
def _compiled_run(images: Tensor, keys: Tensor, epoch: Tensor, transform: int) -> Tensor:
    return _TRANSFORMS[transform]._run(images, keys, int(epoch))


@_compiled_run.register_fake
def _(images: Tensor, keys: Tensor, epoch: Tensor, transform: int) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)


def _stream(seed: int, epoch: int, calls: Tensor) -> tuple[int, int]:
    """The (seed, number) of this process's next call in this epoch."""
    with _LOCK:
        numbers = calls.numpy()  # the same memory, written to in a tenth of the time
        count, of_epoch = numbers.tolist()
        call = count if of_epoch == epoch else 0
        numbers[0], numbers[1] = call + 1, epoch
    worker = get_worker_info()
    return hash_int(hash_int(seed, epoch), worker.seed if worker else 0), call
