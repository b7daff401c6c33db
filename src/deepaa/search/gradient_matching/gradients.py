"""The gradient side of the search: a mean gradient, a direction, and inner products with it.

The reward of a transformation (Eq. 9) is the inner product of one image's gradient with a
direction. That is the derivative of the image's loss as the weights move along the direction, a
Jacobian-vector product (JVP): one forward-mode pass gives it for a whole batch, and no gradient per
image is ever stored. Networks for which this would go wrong are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from deepaa.models import checked_outputs
from deepaa.search.gradient_matching import forward_mode
from deepaa.search.gradient_matching.forward_mode import Node, channels_last, folded

Params = dict[str, Tensor]
"""Tensors by the names of the parameters that they belong to."""
Batch = tuple[Tensor, Tensor]
"""Images and their labels."""
NO_FORWARD_MODE = "the model has no forward-mode derivative"
# the largest relative errors that are accepted
DUAL_TOLERANCE = 1e-5  # of dual numbers in float64: right ones agree to many digits
TOLERANCE = 0.05  # of torch's forward mode, of which some models allow float32 only
LAYOUT_TOLERANCE = 0.1  # of another layout: rounding is far below, another network far above
# steps of finite differences
FLOAT64_STEP = 1e-7  # both exact and clear of rounding
FLOAT32_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)  # large ones meet rectifiers, small ones rounding


class Derivatives:
    """Mean gradients and JVPs of a model's cross-entropy in its weights."""

    def __init__(
        self,
        model: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
        nodes: Sequence[Node] | None = None,
        chunk: int = 1024,
    ) -> None:
        """Prepare both passes; nothing is compiled before the first batch.

        Args:
            dtype: What the layers are computed in; None takes the type of the weights.
            nodes: The model as `forward_mode.trace` gives it, so that JVPs are taken with dual
                numbers; None takes `torch.func.jvp`.
            chunk: Images through the network at a time.
        """
        self.model, self.dtype, self.compiled = model, dtype, compiled
        self.nodes, self.chunk = nodes, chunk
        self._held = _held_tensors(model)
        self._gradient: Callable[..., Params] = self._backward
        self._jvp: Callable[..., Tensor] = self._torch_jvp if nodes is None else self._dual_jvp
        if compiled:
            forward_mode.load_jvp_rules()
            # the derivative is taken inside: dual tensors of torch do not enter compiled code
            self._gradient = torch.compile(self._traceable_backward, fullgraph=True)
            self._jvp = torch.compile(self._jvp, fullgraph=True)

    def mean_gradient(
        self, images: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> Params:
        """The images' gradients, summed with `weights` (N,) (Eq. 3 and 8); None takes the mean."""
        params = trainable(self.model)
        weights = even_weights(images) if weights is None else weights
        total: Params = {}
        with torch.no_grad(), _unfused_attention():
            for part in self._chunks(images, labels, weights):
                found = self._gradient(params, *part)
                total = {k: total[k] + g for k, g in found.items()} if total else found
        return total or {name: torch.zeros_like(p) for name, p in params.items()}

    def loss_jvp(self, images: Tensor, labels: Tensor, direction: Params) -> Tensor:
        """(N,) the inner product of each image's gradient with `direction` (Eq. 9)."""
        params = {name: self.model.get_parameter(name).detach() for name in direction}
        with torch.no_grad(), _unfused_attention():
            parts = [self._jvp(params, direction, *part) for part in self._chunks(images, labels)]
        return torch.cat(parts) if parts else torch.zeros(0, device=images.device)

    def losses(self, images: Tensor, labels: Tensor, params: Params | None = None) -> Tensor:
        """(N,) cross-entropy of each image, with `params` in the place of the model's weights."""
        with torch.no_grad(), _unfused_attention():
            return self._losses(params or trainable(self.model), images, labels)

    def _chunks(self, *batch: Tensor) -> Iterator[list[Tensor]]:
        for start in range(0, len(batch[0]), self.chunk):
            part = [tensor[start : start + self.chunk] for tensor in batch]
            if self.compiled and len(part[0]) > 1:  # compilers specialise on a batch of one
                for tensor in part:  # compiled once for any number of images
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
            yield part

    # Passes through the network

    def _losses(self, params: Params, images: Tensor, labels: Tensor) -> Tensor:
        """(N,) cross-entropy of each image.

        No autocast: forward-mode derivatives do not go through it. The weights are cast instead,
        and the outputs are brought back to at least float32 before the loss.
        """
        outputs = functional_call(self.model, self._state(params), (images,), tie_weights=False)
        wide = outputs if outputs.dtype == torch.float64 else outputs.float()
        return F.cross_entropy(wide, labels, reduction="none")

    def _weighted_loss(self, params: Params, *batch: Tensor) -> Tensor:
        images, labels, weights = batch
        return (self._losses(params, images, labels) * weights).sum()

    def _traceable_backward(self, params: Params, *batch: Tensor) -> Params:
        found: Params = grad(self._weighted_loss)(params, *batch)
        return found

    def _backward(self, params: Params, *batch: Tensor) -> Params:
        # torch.func.grad would load the compiler, which takes longer than a short search's start
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
            total = self._weighted_loss(leaves, *batch)
            found = torch.autograd.grad(
                total, list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(leaves, found, strict=True))

    def _torch_jvp(self, params: Params, direction: Params, *batch: Tensor) -> Tensor:
        def losses(moved: Params) -> Tensor:
            return self._losses(moved, *batch)

        found: Tensor = forward_mode.jvp(losses, (params,), (direction,))[1]
        return found

    def _dual_jvp(
        self, params: Params, direction: Params, images: Tensor, labels: Tensor
    ) -> Tensor:
        assert self.nodes is not None
        tangents = self._named_as_held(_cast(direction, self.dtype))
        outputs, moves = forward_mode.dual_forward(
            self.model, self.nodes, self._state(params), tangents, images
        )
        # of cross-entropy: the outputs' tangents under the softmax, less the label's
        wide = torch.promote_types(outputs.dtype, torch.float32)
        outputs, moves = outputs.to(wide), moves.to(wide)
        own = moves.gather(1, labels[:, None])[:, 0]
        return (outputs.softmax(1) * moves).sum(1) - own

    def _state(self, params: Params) -> Params:
        """All tensors of the model, with `params` in the place of its own."""
        rest = {name: p.detach() for name, p in self.model.named_parameters() if name not in params}
        tensors = {**dict(self.model.named_buffers()), **rest, **params}
        return self._named_as_held(_cast(tensors, self.dtype))

    def _named_as_held(self, tensors: Params) -> Params:
        return {name: tensors[first] for name, first in self._held.items() if first in tensors}


def trainable(model: nn.Module) -> Params:
    """The parameters that require a gradient, detached."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("the model has no parameter that requires a gradient")
    return found


def even_weights(images: Tensor) -> Tensor:
    """(N,) float32 weights of a plain mean."""
    n = len(images)
    return torch.full((n,), 1 / n, device=images.device, dtype=torch.float32)


def _held_tensors(model: nn.Module) -> Mapping[str, str]:
    """Where each module holds a tensor, and the first name of that tensor.

    `functional_call` with all names would swap a layer of two names twice, and put it back once.
    """
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)
    first = {id(tensor): name for name, tensor in reversed(named)}
    held = {}
    for place, module in model.named_modules():  # each module once
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            held[f"{place}.{name}" if place else name] = first[id(tensor)]
    return held


def _cast(tensors: Params, dtype: torch.dtype | None) -> Params:
    if dtype is None:
        return tensors
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}


@contextmanager
def _unfused_attention() -> Iterator[None]:
    """Attention runs as matrix products: fused kernels have no forward mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def flattened(params: Params) -> Tensor:
    """All numbers in one float64 vector: sums over millions of small terms need the digits."""
    return torch.cat([p.reshape(-1) for p in params.values()]).double()


# Networks that are searched with. The checks run code of users, which may raise anything.


def check_model(model: nn.Module, images: Tensor, labels: Tensor, largest: int = 0) -> None:
    """Refuse a model whose rewards would be wrong, with the reason.

    Layers that mix images or draw numbers have no gradient per image. `largest` is the largest
    label of all data, of which `labels` are a part.
    """
    if hasattr(model, "_orig_mod"):
        raise ValueError("the model is compiled; pass the original (model._orig_mod)")
    for name, module in model.named_modules():
        where = f"layer {name!r} ({type(module).__name__})"
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"{where} is in training mode and mixes images: call model.eval()")
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd):
            raise ValueError(f"{where} is in training mode and random: call model.eval()")
    outputs = _class_outputs(model, images, labels, largest)
    with torch.no_grad():
        again, alone = model(images), model(images[:1])
    size = outputs.norm()
    if not bool((again - outputs).norm() <= 1e-3 * size):
        raise ValueError("the model gives other outputs when asked again: a layer is random")
    if not bool((alone - outputs[:1]).norm() <= 1e-2 * size):
        raise ValueError("the model's output for an image depends on the other images of a batch")
    gradient = flattened(Derivatives(model).mean_gradient(images, labels))
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("the model's gradient is not finite")
    if not bool(gradient.any()):
        raise ValueError("the model's gradient is zero: is it trained, and are its weights free?")


def optimized_copy(model: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """The fastest layout of a frozen model that has the same gradient on these images."""
    expected = flattened(Derivatives(model).mean_gradient(images, labels))
    layouts: list[Callable[[nn.Module], nn.Module]] = [lambda same: channels_last(deepcopy(same))]
    if not images.is_cuda:
        layouts = [lambda same: channels_last(folded(same)), folded, *layouts]
    for layout in layouts:
        # a view of pixels as a row, for example, fails where channels come last
        with suppress(Exception):
            fast = layout(model)
            found = flattened(Derivatives(fast).mean_gradient(images, labels))
            is_close = (found - expected).norm() <= LAYOUT_TOLERANCE * expected.norm()
            if found.shape == expected.shape and bool(is_close):
                return fast
    return model


def check_untrained(model: nn.Module, images: Tensor, labels: Tensor, largest: int) -> None:
    """Refuse before its training a model that no training makes fit, with the reason."""
    with torch.no_grad():
        _class_outputs(model, images, labels, largest)
    direction = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
    traced = forward_mode.trace(model)
    for nodes in (None,) if traced is None else (traced, None):
        try:
            Derivatives(model, nodes=nodes).loss_jvp(images, labels, direction)
            return
        except Exception as error:
            problem = error
    raise ValueError(f"{NO_FORWARD_MODE}: {first_line(problem)}") from problem


def _class_outputs(model: nn.Module, images: Tensor, labels: Tensor, largest: int) -> Tensor:
    """(N, classes) what the model gives for the images, if that is one number for each class."""
    outputs: Tensor = checked_outputs(model, images)
    if outputs.ndim != 2 or len(outputs) != len(images):
        raise ValueError(f"the model gives {tuple(outputs.shape)}, expected (images, classes)")
    smallest, largest = int(labels.min()), max(int(labels.max()), largest)
    if largest >= outputs.shape[1] or smallest < 0:
        raise ValueError(
            f"labels run from {smallest} to {largest}, but the model has {outputs.shape[1]} outputs"
        )
    return outputs


def checked_trace(model: nn.Module, images: Tensor, labels: Tensor) -> list[Node] | None:
    """The traced network, if dual numbers give the JVPs that finite differences give.

    Such a model needs torch's forward mode no more, nor the seconds that loading it takes.
    """
    nodes = forward_mode.trace(model)
    if nodes is None:
        return None
    generator = torch.Generator().manual_seed(0)
    try:
        direction = {
            name: (p.double().norm() / math.sqrt(p.numel())).cpu()
            * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for name, p in trainable(model).items()
        }
        error = _float64_error(Derivatives(model, nodes=nodes), (images, labels), direction)
    except Exception:  # a layer that is not what it seemed, or insists on float32
        return None
    return nodes if error < DUAL_TOLERANCE else None


def check_forward_mode(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Refuse a model whose forward-mode derivative is missing or not that of finite differences."""
    derivatives, batch, error = Derivatives(model), (images, labels), math.nan
    gradient = derivatives.mean_gradient(*batch)
    with suppress(Exception):  # a model that insists on float32
        error = _float64_error(derivatives, batch, gradient)
    try:
        if not error < TOLERANCE:
            error = min(_jvp_error(derivatives, batch, gradient, step) for step in FLOAT32_STEPS)
    except Exception as reason:
        raise ValueError(f"{NO_FORWARD_MODE}: {first_line(reason)}") from reason
    if not error < TOLERANCE:
        raise ValueError(
            f"the model's forward-mode derivative is off by {100 * error:.0f} % from finite "
            "differences or from the gradient; a layer with its own jvp or backward, or one that "
            "is random, may be the cause"
        )


def _float64_error(derivatives: Derivatives, batch: Batch, direction: Params) -> float:
    """The error of JVPs in float64, where rounding hides nothing."""
    wide = Derivatives(deepcopy(derivatives.model).double(), nodes=derivatives.nodes)
    with _InFloat64():
        return _jvp_error(wide, batch, direction, FLOAT64_STEP)


def _jvp_error(derivatives: Derivatives, batch: Batch, direction: Params, step: float) -> float:
    """The relative error of JVPs against central differences, and of their mean to the gradient.

    The median over images: where a rectifier turns within the step, a difference is no derivative.
    The gradient shows layers with a backward pass of their own, such as one that rounds.
    """
    (images, labels), params = batch, trainable(derivatives.model)
    images = images.to(next(iter(params.values())).dtype) if images.is_floating_point() else images
    norm = flattened(direction).norm()
    direction = {name: (d / norm).to(params[name]) for name, d in direction.items()}
    products = derivatives.loss_jvp(images, labels, direction)
    step *= max(1.0, flattened(params).norm().item())
    ahead, behind = (
        derivatives.losses(images, labels, {k: p + way * direction[k] for k, p in params.items()})
        for way in (step, -step)
    )
    difference = (ahead - behind) / (2 * step)
    error = (products - difference).abs().median() / difference.abs().mean().clamp(min=1e-12)
    gradient = derivatives.mean_gradient(images, labels)
    along = torch.dot(flattened(gradient), flattened(direction))
    apart = (products.mean() - along).abs() / torch.maximum(along.abs(), products.abs().mean())
    return max(float(error), float(apart))


class _InFloat64(TorchFunctionMode):
    """Has code that names float32, as `images.float()` does, compute in float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch in the place of each of its functions."""
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        call: Callable[..., Any] = Tensor.double if func is Tensor.float else func
        return call(*args, **named)


def first_line(error: Exception) -> str:
    """What an error of torch says first; the rest is long."""
    return str(error).strip().split("\n")[0]
