"""A run that begins with what another has learned: its weights and normalisers, and nothing else of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from sim2real.contract import ObservationTerm
from sim2real.errors import InputError
from sim2real.tasks.base import unpublished
from sim2real.tasks.gym_tasks import is_foreign
from sim2real_train.algorithms import make_algorithm
from sim2real_train.checkpoint import Arrays, checkpoint_of, read_checkpoint
from sim2real_train.chunks import WarmStart
from sim2real_train.config import InitRef, TrainConfig
from sim2real_train.environments import sizes_of, task_of_run

__all__ = ["init_at", "warm_start"]

_NORMALISERS: Final = ("observations/", "values/")
"""What the moments of normalisers are called in the state of a learner."""
_OWN: Final = frozenset({"teacher_share"})
"""Of the weights, what says how far a run is, and not what it has learned."""

_NO_KIND: Final = frozenset({"initial_std", "recurrent_size"})
"""Settings of the model that need not be equal: the noise is among the weights, whose shapes show the size of a memory,
where there is one."""
_CRITICS: Final = frozenset({"critic", "critics", "targets"})
"""First part of the names of weights that judge what a policy does, and are not needed to act."""


class _Differences(NamedTuple):
    """In words, how two runs differ in kind."""

    policy: list[str]
    critic: list[str]
    """Only what it alone has otherwise."""


def init_at(path: Path) -> InitRef:
    """Return what the folder of a run, by its last checkpoint, or a checkpoint folder holds now.

    Raises:
        InputError: It holds no whole checkpoint.
    """
    folder = checkpoint_of(path).absolute()
    return InitRef(checkpoint=str(folder), weights_sha256=read_checkpoint(folder).weights_sha256)


def warm_start(config: TrainConfig) -> WarmStart | None:
    """Read what a run is to begin with, and check that it fits; None: it begins from nothing.

    The policy has to fit. A critic of other inputs or shapes, as on a task whose critic sees more, begins anew.

    Raises:
        InputError: The checkpoint is missing, damaged or another one than it was; or algorithm, networks, or the inputs
            and outputs of the policy differ: the message says in what.
    """
    reference = config.init_from
    if reference is None:
        return None
    checkpoint = read_checkpoint(Path(reference.checkpoint))
    if checkpoint.weights_sha256 != reference.weights_sha256:
        raise InputError(
            f"--init-from {reference.checkpoint}: holds other weights (SHA-256 {checkpoint.weights_sha256[:12]}…) than "
            f"it did ({reference.weights_sha256[:12]}…); give a checkpoint that nobody writes to"
        )
    weights = {name: array for name, array in checkpoint.arrays["weights"].items() if name not in _OWN}
    learner = checkpoint.arrays["learner"]
    normalisers = {name: array for name, array in learner.items() if name.startswith(_NORMALISERS)}
    differences = _differences(checkpoint.state.config, config)
    if not differences.policy:
        sizes = sizes_of(config)
        shapes = _differing_shapes(weights, config, sizes)
        differences = _Differences(shapes.policy, differences.critic or shapes.critic)
        if differences.critic and not differences.policy:
            return _without_critic(weights, normalisers, sizes[1], "; ".join(differences.critic))
    if differences.policy:
        told = "; ".join([*differences.policy, *differences.critic])
        raise InputError(f"--init-from {reference.checkpoint}: cannot begin with it: {told}")
    return WarmStart(weights=weights, normalisers=normalisers)


def _without_critic(weights: Arrays, normalisers: Arrays, width: int, differs: str) -> WarmStart:
    """Return the policy alone, and the moments of what it reads.

    What else a critic of inputs of this width sees counts as of mean 0 and deviation 1, about which tasks make it.
    """
    count, seen = normalisers["observations/count"], len(weights["actor.normalizer.mean"])
    mean, squares = np.zeros(width), np.full(width, float(count))
    mean[:seen], squares[:seen] = (normalisers[f"observations/{name}"][:seen] for name in ("mean", "squares"))
    policy = {name: array for name, array in weights.items() if not _is_critics(name)}
    return WarmStart(
        weights=policy,
        normalisers={"observations/count": count, "observations/mean": mean, "observations/squares": squares},
        critic_differs=differs if len(policy) < len(weights) else "",
    )


def _differences(there: TrainConfig, here: TrainConfig) -> _Differences:
    """Return how algorithm, networks, inputs and outputs of two runs differ."""
    kinds = [config.algorithm.__struct_config__.tag for config in (there, here)]
    policy = [f"it was learned by {kinds[0]}, this run is to learn by {kinds[1]}"] if kinds[0] != kinds[1] else []
    critic: list[str] = []
    for field in here.model.__struct_fields__:
        old, new = getattr(there.model, field), getattr(here.model, field)
        if old != new and field not in _NO_KIND:
            phrases = critic if field == "recurrent_critic" else policy
            phrases.append(f"model.{field} is {_json(old)} there and {_json(new)} here")
    old_parts, new_parts = _interface(there), _interface(here)
    for part in dict.fromkeys((*old_parts, *new_parts)):
        old, new = old_parts.get(part, ()), new_parts.get(part, ())
        if old != new:
            # A privileged policy reads what its critic sees.
            phrases = critic if part == "critic" and not here.model.privileged else policy
            phrases.append(f"{part}: {_difference(old, new)}")
    return _Differences(policy, critic)


def _interface(config: TrainConfig) -> dict[str, tuple[str, ...]]:
    """Return the kinds of what goes into the networks of a run and comes out; empty for a foreign environment."""
    if is_foreign(config.task):
        return {}
    task = task_of_run(config)
    contract = task.contract(unpublished(task))
    return {
        "joints": tuple(f"{joint.name} ({joint.command_mode})" for joint in contract.joints),
        "observation": (*map(_term, contract.observation.terms), contract.observation.layout),
        "action": (contract.action.mode, *contract.action.joints),
        "commands": tuple(command.name for command in contract.commands),
        "critic": tuple(task.critic),
    }


def _term(term: ObservationTerm) -> str:
    count = f", {len(term.joints)} joints" if term.joints else ""
    history = f", {term.history_length} × every {term.history_stride}" if term.history_length > 1 else ""
    function = f", {term.function}" if term.function != "identity" else ""
    return f"{term.name} ({term.source}{function}{count}{history})"


def _difference(there: tuple[str, ...], here: tuple[str, ...]) -> str:
    only = [
        ("there", [each for each in there if each not in here]),
        ("here", [each for each in here if each not in there]),
    ]
    told = [f"only {where} {', '.join(names)}" for where, names in only if names]
    return " and ".join(told) or "in another order"


def _differing_shapes(weights: Arrays, config: TrainConfig, sizes: tuple[int, int, int]) -> _Differences:
    """Return the first tensor of the policy, and the first of the critic, that the other run has otherwise or not."""
    own = make_algorithm(config, sizes, rank=0, average=_alone).model.state_dict()
    there = {name: tuple(array.shape) for name, array in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in own.items() if name not in _OWN}
    differences = _Differences([], [])
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            phrases = differences.critic if _is_critics(name) else differences.policy
            phrases.append(f"{name} is {_shape(there, name)} there and {_shape(here, name)} here")
    return _Differences(differences.policy[:1], differences.critic[:1])


def _is_critics(name: str) -> bool:
    return name.partition(".")[0] in _CRITICS


def _shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return f"of shape {shapes[name]}" if name in shapes else "not"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _alone(vector: Any) -> None:
    """The mean of one."""
