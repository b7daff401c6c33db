"""The gradient side of the search: a mean gradient, a direction, and inner products with it.

The reward of a transformation (Eq. 9) is the inner product of one image's gradient with a
direction. That is the derivative of the image's loss as the weights move along the direction, a
Jacobian-vector product (JVP): one forward-mode pass gives it for a whole batch, and no gradient per
image is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from deepaa.search.gradient_matching import forward_mode

Params = dict[str, Tensor]
"""Tensors by the names of the parameters that they belong to."""


class Derivatives:
    """Mean gradients and JVPs of a model's cross-entropy in its weights."""

    def __init__(
        self,
        model: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
        nodes: Sequence[forward_mode.Node] | None = None,
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
        self._tied = _tied_tensors(model)
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
            return self._losses(trainable(self.model) if params is None else params, images, labels)

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

    def _weighted_loss(
        self, params: Params, images: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
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

    def _torch_jvp(
        self, params: Params, direction: Params, images: Tensor, labels: Tensor
    ) -> Tensor:
        def losses(moved: Params) -> Tensor:
            return self._losses(moved, images, labels)

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
        if self._tied is None:
            return tensors
        return {name: tensors[first] for name, first in self._tied.items() if first in tensors}


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


def _tied_tensors(model: nn.Module) -> Mapping[str, str] | None:
    """Where each module holds a tensor, and the tensor's first name; None if no tensor has two.

    `functional_call` with all names would swap a layer of two names twice, and put it back once.
    """
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)
    if len({id(tensor) for _, tensor in named}) == len(named):
        return None
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(id(tensor), name)
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


# The cosine similarity and its derivative


def flattened(params: Params) -> Tensor:
    """All numbers in one float64 vector: sums over millions of small terms need the digits."""
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
    d = (a - b) / 2 these are m.m - d.d and (v.m) m - (v.d) d. Two estimates may be at odds, so d
    is scaled down until |g|^2 keeps half of m.m.

    Args:
        target: v, the mean gradient of the original images.
        gradient: g, or an estimate a of it.
        other: An estimate b from other draws.
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
    """M and d of two estimates, the share of d.d that counts, and |g|^2."""
    m, d = (a + b) / 2, (a - b) / 2
    m2, d2 = m @ m, d @ d
    share = torch.where(d2 > 0, m2 / (2 * d2), 1.0).clamp(max=1)
    return m, d, share, m2 - share * d2


def _cosine(v: Tensor, a: Tensor, b: Tensor, v_length: Tensor, empty: Tensor) -> Tensor:
    """The cosine of v and g, from estimates scaled to one length: a longer one counts no more."""
    lengths = (torch.where(x @ x > 0, x @ x, 1.0).sqrt() for x in (a, b))
    m, _, _, g2 = _joined(*(x / length for x, length in zip((a, b), lengths, strict=True)))
    return torch.where(empty, 0.0, v @ m / (v_length * torch.where(empty, 1.0, g2).sqrt()))
