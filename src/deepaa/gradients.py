"""The gradient side of the search: a mean gradient, a direction, and losses' slopes along it.

The reward of a transformation (Eq. 9) is an inner product of one image's gradient with a direction.
It is the derivative of that image's loss as the weights move along the direction, so one pass in
forward mode gives it for a whole batch: no gradient per image is ever stored.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from deepaa import dual

Params = dict[str, Tensor]


def weights_of(model: nn.Module) -> Params:
    """The parameters a gradient is taken over: those that require one."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("the model has no parameter that requires a gradient")
    return found


def losses(
    model: nn.Module, params: Params, images: Tensor, labels: Tensor, dtype: torch.dtype | None
) -> Tensor:
    """Cross-entropy of each image, (N,), with the model's layers computed in `dtype`.

    No autocast: forward-mode derivatives do not go through it. The weights are cast instead, and
    the outputs are brought back to at least float32 before the loss.
    """
    state = _state(model, params, dtype)
    return _cross_entropy(functional_call(model, state, (images,)), labels)


def _state(model: nn.Module, params: Params, dtype: torch.dtype | None) -> Params:
    """All tensors of the model, `params` in the place of its own."""
    rest = {name: p.detach() for name, p in model.named_parameters() if name not in params}
    return _cast({**dict(model.named_buffers()), **rest, **params}, dtype)


def _cast(tensors: Params, dtype: torch.dtype | None) -> Params:
    if dtype is None:
        return tensors
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    wide = outputs if outputs.dtype == torch.float64 else outputs.float()
    return F.cross_entropy(wide, labels, reduction="none")


def _chunks(n: int, chunk: int) -> Iterator[slice]:
    for start in range(0, n, chunk):
        yield slice(start, min(start + chunk, n))


class Functions(NamedTuple):
    """The two passes through a network, as functions of its weights; compiled or not."""

    gradient: Callable[[Params, Tensor, Tensor, Tensor], Params]
    """(weights of the network, images, labels, weights of the images) -> weighted sum."""
    slopes: Callable[[Params, Params, Tensor, Tensor], Tensor]
    """(weights of the network, direction, images, labels) -> slope of each image's loss."""


def functions(
    model: nn.Module,
    dtype: torch.dtype | None = None,
    *,
    compiled: bool = False,
    steps: Sequence[dual.Step] | None = None,
) -> Functions:
    """Both passes in `dtype`, compiled once if asked.

    Args:
        steps: The network as `dual.trace` sees it: slopes then come from dual numbers.
    """

    def gradient(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Params:
        def total(p: Params) -> Tensor:
            return (losses(model, p, images, labels, dtype) * weights).sum()

        found: Params = grad(total)(params)
        return found

    def plain_gradient(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Params:
        # torch.func.grad would load the compiler, which takes longer than a short search's start
        with torch.enable_grad():
            own = {name: p.detach().requires_grad_() for name, p in params.items()}
            total = (losses(model, own, images, labels, dtype) * weights).sum()
            parts = torch.autograd.grad(
                total, list(own.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(own, parts, strict=True))

    def slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        def each(p: Params) -> Tensor:
            return losses(model, p, images, labels, dtype)

        found: Tensor = dual.forward_mode(each, (params,), (direction,))[1]
        return found

    def dual_slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        assert steps is not None
        values = _state(model, params, dtype)
        outputs, moves = dual.run(model, steps, values, _cast(direction, dtype), images)
        # the slope of cross-entropy: the outputs' slopes under the softmax, less the label's
        wide = torch.promote_types(outputs.dtype, torch.float32)
        outputs, moves = outputs.to(wide), moves.to(wide)
        own = moves.gather(1, labels[:, None])[:, 0]
        return (outputs.softmax(1) * moves).sum(1) - own

    along = slopes if steps is None else dual_slopes
    if not compiled:
        return Functions(plain_gradient, along)
    dual.load_forward_mode()
    # the derivative is taken inside, never outside: dual numbers do not enter compiled code
    fast_gradient = torch.compile(gradient, fullgraph=True)
    fast_slopes = torch.compile(along, fullgraph=True)

    def any_gradient(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Params:
        _of_any_size(images, labels, weights)
        return fast_gradient(params, images, labels, weights)

    def any_slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        _of_any_size(images, labels)
        return fast_slopes(params, direction, images, labels)

    return Functions(any_gradient, any_slopes)


def _of_any_size(*batches: Tensor) -> None:
    """Have the number of images stay open in compiled code, so that it is compiled once."""
    if len(batches[0]) > 1:  # compilers treat a batch of one apart
        for batch in batches:
            torch._dynamo.maybe_mark_dynamic(batch, 0)


def even_weights(images: Tensor) -> Tensor:
    """(N,) float32 weights of a plain mean."""
    n = len(images)
    return torch.full((n,), 1 / n, device=images.device, dtype=torch.float32)


def mean_gradient(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    chunk: int = 1024,
    passes: Functions | None = None,
) -> Params:
    """The sum of `weights` (N,) times each image's gradient (Eq. 3 and 8)."""
    params = weights_of(model)
    run = (passes or functions(model)).gradient
    total: Params | None = None
    with torch.no_grad():
        for part in _chunks(len(images), chunk):
            found = run(params, images[part], labels[part], weights[part])
            if total is None:
                total = found
            else:
                total = {name: value + found[name] for name, value in total.items()}
    return total or {name: torch.zeros_like(p) for name, p in params.items()}


def _flat(params: Params) -> Tensor:
    """All numbers in float64, one after the other: a network has millions of small terms."""
    return torch.cat([p.reshape(-1) for p in params.values()]).double()


def cosine_and_direction(
    target: Params, gradient: Params, other: Params | None = None, *, normalise: bool = True
) -> tuple[Tensor, Params]:
    """The cosine of v and g, and the direction u in which moving g raises it (bracket of Eq. 9).

    u = v / |g| - (v.g) g / |g|^3, divided by |v| too when `normalise`: the exact derivative of the
    cosine, which weighs all images alike. Where either vector is zero, both results are zero.

    An estimate of g from few draws is too long, and u would then leave a part of g in: rewards of
    transformations with large gradients come out too high. Products of two estimates have no such
    bias: |g|^2 = a.b and (v.g) g = ((v.a) b + (v.b) a) / 2. With m = (a + b) / 2 and
    d = (a - b) / 2 these are m.m - d.d and (v.m) m - (v.d) d, of which so much of d is taken that
    |g|^2 keeps half of m.m: two estimates may be at odds.

    Args:
        gradient: g, or an estimate of it, a.
        other: Another estimate from other draws, b.
    """
    v, a = _flat(target), _flat({name: gradient[name] for name in target})
    b = a if other is None else _flat({name: other[name] for name in target})
    v2, (m, d, share, g2) = v @ v, _joined(a, b)
    empty = (g2 <= 0) | (v2 <= 0)
    length, v_length = (torch.where(empty, 1.0, square).sqrt() for square in (g2, v2))
    scale = torch.where(empty, 0.0, 1 / (length * v_length if normalise else length))
    along = ((v @ m) * m - share * (v @ d) * d) / torch.where(empty, 1.0, g2)
    flat = torch.split(scale * (v - along), [p.numel() for p in target.values()])
    direction = {
        name: part.view(p.shape).to(p.dtype)
        for (name, p), part in zip(target.items(), flat, strict=True)
    }
    return _cosine(v, a, b, v_length, empty), direction


def _joined(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and half difference of two estimates, how much of the latter counts, and |g|^2."""
    m, d = (a + b) / 2, (a - b) / 2
    m2, d2 = m @ m, d @ d
    share = torch.where(d2 > 0, m2 / (2 * d2), 1.0).clamp(max=1)
    return m, d, share, m2 - share * d2


def _cosine(v: Tensor, a: Tensor, b: Tensor, v_length: Tensor, empty: Tensor) -> Tensor:
    """The cosine of v and g, of two estimates of equal length: a longer one counts no more."""
    lengths = (torch.where(x @ x > 0, x @ x, 1.0).sqrt() for x in (a, b))
    m, _, _, g2 = _joined(*(x / length for x, length in zip((a, b), lengths, strict=True)))
    return torch.where(empty, 0.0, v @ m / (v_length * torch.where(empty, 1.0, g2).sqrt()))


def loss_slopes(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    direction: Params,
    *,
    chunk: int = 1024,
    passes: Functions | None = None,
) -> Tensor:
    """Derivative of each image's loss as the weights move along `direction` (Eq. 9): (N,)."""
    params = {name: model.get_parameter(name).detach() for name in direction}
    run = (passes or functions(model)).slopes
    with torch.no_grad():
        slopes = [
            run(params, direction, images[part], labels[part])
            for part in _chunks(len(images), chunk)
        ]
    return torch.cat(slopes) if slopes else torch.zeros(0, device=images.device)


def dual_steps(model: nn.Module, images: Tensor, labels: Tensor) -> list[dual.Step] | None:
    """The network for dual numbers, if these give the slopes that finite differences give.

    What they agree on needs torch's forward mode no more, nor the seconds that loading it takes.
    """
    steps = dual.trace(model)
    if steps is None:
        return None
    try:
        wide = copy.deepcopy(model).double()  # where two right ways agree to many digits
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: (p.norm() / math.sqrt(p.numel())).cpu() * _normal(p, generator)
            for name, p in weights_of(wide).items()
        }
        off = _slope_error(wide, images, labels, direction, TINY_STEP, steps)
    except Exception:  # a layer that is not what it seemed, or insists on float32
        return None
    return steps if off < 1e-5 else None


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def problem_in(model: nn.Module, images: Tensor, labels: Tensor) -> str | None:
    """Why the model does not run in bfloat16; None if it does."""
    try:
        with torch.no_grad():
            losses(model, weights_of(model), images, labels, torch.bfloat16)
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


TINY_STEP = 1e-7
"""Of finite differences in float64: there it is both exact and clear of rounding."""


def check_model(
    model: nn.Module, images: Tensor, labels: Tensor, largest: int | None = None
) -> None:
    """Refuse a model whose rewards would be wrong, with the reason.

    Layers that mix images or draw numbers have no gradient per image.

    Args:
        largest: The largest label of all data, of which `labels` are a part.
    """
    if hasattr(model, "_orig_mod"):
        raise ValueError("the model is compiled; pass the original (model._orig_mod)")
    for name, module in model.named_modules():
        where = f"layer {name!r} ({type(module).__name__})"
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"{where} is in training mode and mixes images: call model.eval()")
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd):
            raise ValueError(f"{where} is in training mode and random: call model.eval()")
    outputs = model(images)
    if outputs.ndim != 2 or len(outputs) != len(images):
        raise ValueError(f"the model gives {tuple(outputs.shape)}, expected (images, classes)")
    largest = max(int(labels.max()), largest or 0)
    if largest >= outputs.shape[1] or int(labels.min()) < 0:
        raise ValueError(
            f"labels run from {int(labels.min())} to {largest}, but the model has "
            f"{outputs.shape[1]} outputs"
        )
    with torch.no_grad():
        again, alone = model(images), model(images[:1])
    size = outputs.norm()
    if not bool((again - outputs).norm() <= 1e-3 * size):
        raise ValueError("the model gives other outputs when asked again: a layer is random")
    if not bool((alone - outputs[:1]).norm() <= 1e-2 * size):
        raise ValueError("the model's output for an image depends on the other images of a batch")
    gradient = _flat(mean_gradient(model, images, labels, even_weights(images)))
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("the model's gradient is not finite")
    if not bool(gradient.any()):
        raise ValueError("the model's gradient is zero: is it trained, and are its weights free?")


def check_forward_mode(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Refuse a model whose forward-mode derivative is missing or not that of finite differences."""
    off = math.nan
    gradient = mean_gradient(model, images, labels, even_weights(images))
    try:
        wide = copy.deepcopy(model).double()
        direction = {name: g.double() for name, g in gradient.items()}
        off = _slope_error(wide, images, labels, direction, TINY_STEP)
    except (RuntimeError, NotImplementedError) as error:
        if "forward" in str(error).lower() or "jvp" in str(error).lower():
            raise ValueError(f"the model has no forward-mode derivative: {error}") from error
    if math.isnan(off):  # a model that insists on float32
        off = _slope_error(model, images, labels, gradient, 1e-3)
    if not off < 0.05:
        raise ValueError(
            f"the model's forward-mode derivative is off by {100 * off:.0f} % from finite "
            "differences or from the gradient; a layer with its own jvp or backward, or one that "
            "is random, may be the cause"
        )


def _slope_error(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    direction: Params,
    relative: float,
    steps: Sequence[dual.Step] | None = None,
) -> float:
    """How far slopes are from central differences, or their mean from the gradient, relatively.

    The median of the images: where a rectifier turns within the step, a difference is no slope. A
    gradient that is another has a layer with a backward pass of its own, such as one that rounds.
    """
    params = weights_of(model)
    images = images.to(next(iter(params.values())).dtype) if images.is_floating_point() else images
    norm = _flat(direction).norm()
    direction = {name: (d / norm).to(params[name]) for name, d in direction.items()}
    passes = functions(model, steps=steps)
    slopes = loss_slopes(model, images, labels, direction, passes=passes)
    step = relative * max(1.0, _flat(params).norm().item())
    with torch.no_grad():
        there = [
            losses(
                model, {k: p + s * direction[k] for k, p in params.items()}, images, labels, None
            )
            for s in (step, -step)
        ]
    difference = (there[0] - there[1]) / (2 * step)
    off = (slopes - difference).abs().median() / difference.abs().mean().clamp(min=1e-12)
    gradient = mean_gradient(model, images, labels, even_weights(images))
    along = torch.dot(_flat(gradient), _flat(direction))
    apart = (slopes.mean() - along).abs() / torch.maximum(along.abs(), slopes.abs().mean())
    return max(float(off), float(apart))
