"""The gradient side of the search: a mean gradient, a direction, and losses' slopes along it.

The reward of a transformation (Eq. 9) is an inner product of one image's gradient with a direction.
It is the derivative of that image's loss as the weights move along the direction, so one pass in
forward mode gives it for a whole batch: no gradient per image is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from deepaa import dual

Params = dict[str, Tensor]


def weights_of(model: nn.Module) -> Params:
    """The parameters a gradient is taken over: those that require one."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("the model has no parameter that requires a gradient")
    return found


Places = Mapping[str, str] | None
"""Where a module holds a tensor, and the tensor's first name; None: each has one place."""


def places_of(model: nn.Module) -> Places:
    """Every place of every tensor, of a model with layers or tensors under several names.

    `functional_call` puts a layer of two names aside twice, and back once.
    """
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)
    if len({id(tensor) for _, tensor in named}) == len(named):
        return None
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(id(tensor), name)
    found = {}
    for place, module in model.named_modules():  # each once
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            found[f"{place}.{name}" if place else name] = first[id(tensor)]
    return found


def losses(
    model: nn.Module,
    params: Params,
    images: Tensor,
    labels: Tensor,
    dtype: torch.dtype | None,
    places: Places,
) -> Tensor:
    """Cross-entropy of each image, (N,), with the model's layers computed in `dtype`.

    No autocast: forward-mode derivatives do not go through it. The weights are cast instead, and
    the outputs are brought back to at least float32 before the loss.
    """
    state = _placed(_state(model, params, dtype), places)
    with _plain_attention():
        outputs = functional_call(model, state, (images,), tie_weights=False)
    return _cross_entropy(outputs, labels)


def _plain_attention() -> AbstractContextManager[None]:
    """Attention by products of matrices inside: fused kernels have no forward mode."""
    if torch.compiler.is_compiling():  # which is around compiled code already
        return nullcontext()
    return _without_fused_attention()


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _state(model: nn.Module, params: Params, dtype: torch.dtype | None) -> Params:
    """All tensors of the model, `params` in the place of its own."""
    rest = {name: p.detach() for name, p in model.named_parameters() if name not in params}
    return _cast({**dict(model.named_buffers()), **rest, **params}, dtype)


def _placed(tensors: Params, places: Places) -> Params:
    if places is None:
        return tensors
    return {place: tensors[name] for place, name in places.items() if name in tensors}


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
    places = places_of(model)

    def gradient(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Params:
        def total(p: Params) -> Tensor:
            return (losses(model, p, images, labels, dtype, places) * weights).sum()

        found: Params = grad(total)(params)
        return found

    def plain_gradient(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Params:
        # torch.func.grad would load the compiler, which takes longer than a short search's start
        with torch.enable_grad():
            own = {name: p.detach().requires_grad_() for name, p in params.items()}
            total = (losses(model, own, images, labels, dtype, places) * weights).sum()
            parts = torch.autograd.grad(
                total, list(own.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(own, parts, strict=True))

    def slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        def each(p: Params) -> Tensor:
            return losses(model, p, images, labels, dtype, places)

        found: Tensor = dual.forward_mode(each, (params,), (direction,))[1]
        return found

    def dual_slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        assert steps is not None
        values = _placed(_state(model, params, dtype), places)
        moving = _placed(_cast(direction, dtype), places)
        with _plain_attention():
            outputs, moves = dual.run(model, steps, values, moving, images)
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
        with _without_fused_attention():
            return fast_gradient(params, images, labels, weights)

    def any_slopes(params: Params, direction: Params, images: Tensor, labels: Tensor) -> Tensor:
        _of_any_size(images, labels)
        with _without_fused_attention():
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


def flattened(params: Params) -> Tensor:
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
    v, a = flattened(target), flattened({name: gradient[name] for name in target})
    b = a if other is None else flattened({name: other[name] for name in target})
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
