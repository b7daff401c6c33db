"""The candidates of a contest: no augmentation, what needs no search, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from deepaa.ops import Row
from deepaa.policy import Chains, Policy, SpaceName, compared_policy

NONE, CROP_FLIP = "none", "crop-flip"
REFERENCES = (NONE, CROP_FLIP)
"""What any other candidate has to beat."""
FOUND = "found"
HALF = 0.5
AS_FOUND = ""
FORMS = {"-spread": "spread", "-half": "half strength", AS_FOUND: ""}
"""The forms of a found policy: what their names end with, and their titles."""
FOUND_BY, JUDGED = "found by ", "contest"
"""How the description begins of what a search found, and what the info of a winner has."""
SHOWN = 2
"""Operations that a title names, at most."""
METHOD, OWN = "method", "deepaa"
"""Where a policy says what found it, and gradient matching, which stacks layers."""
_NAMED = {
    NONE: "no augmentation",
    CROP_FLIP: "crop and flip",
    "trivialaugment-wide": "TrivialAugment (wide)",
    "trivialaugment": "TrivialAugment",
    "crop-flip-cutout": "crop, flip and cutout",
    "timm-randaugment": "timm's RandAugment (m9)",
}
"""Policies that need no search, by their names in `deepaa policies`."""


class Candidate(NamedTuple):
    """A policy that takes part in a contest."""

    name: str
    """Short, unique, without spaces."""
    title: str
    """As a person reads it."""
    policy: Policy
    kind: str = "named"
    """named, found, or given by the user."""


def named_candidates(space: SpaceName) -> list[Candidate]:
    """What people use without a search, the two references first.

    Cutout is for small images: the default augmentation of large ones has none.
    """
    names = [name for name in _NAMED if space == "cifar" or name != "crop-flip-cutout"]
    return [Candidate(name, _NAMED[name], compared_policy(name, space=space)) for name in names]


def found_candidates(
    found: Policy,
    name: str = FOUND,
    title: str = "the found policy",
    kind: str = FOUND,
    *,
    depths: bool = True,
) -> list[Candidate]:
    """The found policy at several depths, each as found, spread, and at half of its strength.

    How much augmentation a network needs is not what gradient matching tells; training does. What
    other methods found ends with crop, flip and cutout, has sub-policies, or changes over the
    epochs: it takes part whole.

    Args:
        name: Of the whole policy as found; the names of other forms begin with it.
        depths: Whether the policy of gradient matching takes part with fewer layers, too.
    """
    is_deep = found.info.get(METHOD, OWN) == OWN and len(found.phases) == 1
    if not is_deep or any(isinstance(stage, Chains) for stage in found.phases[0].stages):
        depths = False
    whole, candidates = found.most_layers, list[Candidate]()
    wanted = (whole, whole - 1, 1) if depths else (whole,)
    for depth in (d for d in dict.fromkeys(wanted) if 0 < d <= whole):
        base = found if depth == whole else found.first_layers(depth)
        first, what = name, title
        if depth != whole:
            first += f"-{depth}"
            what += f", first {depth} layers" if depth > 1 else ", first layer"
        forms = {
            tail: Candidate(f"{first}{tail}", what + (text and f", {text}"), policy, kind)
            for (tail, text), policy in zip(
                FORMS.items(), (base.spread(), base.strength(HALF), base), strict=True
            )
        }
        as_found = forms.pop(AS_FOUND)
        candidates += [each for each in forms.values() if not each.policy.equals(base)]
        # it is often too strong (docs/methods.md has figures), so it comes last
        candidates.append(as_found)
    return candidates


def is_as_found(policy: Policy) -> bool:
    """Whether a policy is what a search has found, as it says: neither changed nor judged since."""
    is_found = METHOD in policy.info or policy.info.get("description", "").startswith(FOUND_BY)
    return is_found and "changed" not in policy.info and JUDGED not in policy.info


def all_candidates(
    space: SpaceName,
    *,
    found: Policy | None = None,
    given: Sequence[Candidate] = (),
    more: Sequence[Sequence[Candidate]] = (),
    excludes: Callable[[Row], bool] = lambda row: False,
) -> list[Candidate]:
    """Every candidate without the excluded rows, each policy once, the most promising first.

    A contest that cannot afford all of them leaves out the last. What an excluded row had goes to
    identity, and the title says so; a candidate that is left with nothing, or equals an earlier
    one, drops out.

    Args:
        more: Forms of each of several policies that are given.
    """
    named = named_candidates(space)
    forms = [*more, [] if found is None else found_candidates(found)]
    early, then, late = (
        [each for some in forms for each in some[part]]
        for part in (slice(2), slice(2, 3), slice(3, None))
    )
    # the weaker forms of the found policy before policies that are near to others in the list
    ordered = [*named[:2], *given, *early, *named[2:4], *then, *named[4:], *late]
    kept: list[Candidate] = []
    for candidate in ordered:
        protected = _protected(candidate, excludes)
        if not any(protected.policy.equals(other.policy) for other in kept):
            kept.append(protected)
    names = [candidate.name for candidate in kept]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"two policies of a contest are called {twice[0]!r}; give them other names"
        )
    return kept


def _protected(candidate: Candidate, excludes: Callable[[Row], bool]) -> Candidate:
    """The candidate without the excluded rows, under a title that says so."""
    policy = candidate.policy.without(excludes)
    if policy.equals(candidate.policy):
        return candidate
    before, left = _uses(candidate.policy), _uses(policy)
    rows = [row for row in candidate.policy.table.rows if excludes(row)]
    names = dict.fromkeys(row.operation.name for row in rows)
    gone = [name for name in names if before.get(name, 0.0) - left.get(name, 0.0) > 1e-9]
    if not gone:
        return candidate._replace(policy=policy)
    parts = [f"strong {name}" if left.get(name) else name for name in gone]
    what = " and ".join(parts) if len(parts) <= SHOWN else "what changes classes"
    return candidate._replace(policy=policy, title=f"{candidate.title} without {what}")


def _uses(policy: Policy) -> dict[str, float]:
    """How often an image meets each operation, over all phases."""
    found: dict[str, float] = {}
    for phase in policy.phases:
        for name, uses in policy.expected_uses(phase.epoch).items():
            found[name] = found.get(name, 0.0) + uses
    return found


def protected_away(everybody: Sequence[Candidate], kept: Sequence[Candidate]) -> list[Candidate]:
    """Those of whom nothing of their own is left without what turns one class into another."""
    names = {candidate.name for candidate in kept}
    return [candidate for candidate in everybody if candidate.name not in names]
