"""A run that begins with what another has learned: its weights and normalisers, and nothing else of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

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


def init_at(path: Path) -> InitRef:
    """Return what the folder of a run, by its last checkpoint, or a checkpoint folder holds now.

    Raises:
        InputError: It holds no whole checkpoint.
    """
    folder = checkpoint_of(path).absolute()
    return InitRef(checkpoint=str(folder), weights_sha256=read_checkpoint(folder).weights_sha256)


def warm_start(config: TrainConfig) -> WarmStart | None:
    """Read what a run is to begin with, and check that it fits; None: it begins from nothing.

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
    weights = checkpoint.arrays["weights"]
    differences = _differences(checkpoint.state.config, config) or _differing_shapes(weights, config)
    if differences:
        raise InputError(f"--init-from {reference.checkpoint}: cannot begin with it: {'; '.join(differences)}")
    return WarmStart(
        weights={name: array for name, array in weights.items() if name not in _OWN},
        normalisers={
            name: array for name, array in checkpoint.arrays["learner"].items() if name.startswith(_NORMALISERS)
        },
    )


def _differences(there: TrainConfig, here: TrainConfig) -> list[str]:
    """Return in words how algorithm, networks, inputs and outputs of two runs differ in kind."""
    kinds = [config.algorithm.__struct_config__.tag for config in (there, here)]
    phrases = [f"it was learned by {kinds[0]}, this run is to learn by {kinds[1]}"] if kinds[0] != kinds[1] else []
    for field in here.model.__struct_fields__:
        old, new = getattr(there.model, field), getattr(here.model, field)
        if old != new and field not in _NO_KIND:
            phrases.append(f"model.{field} is {_json(old)} there and {_json(new)} here")
    old_parts, new_parts = _interface(there), _interface(here)
    for part in dict.fromkeys((*old_parts, *new_parts)):
        old, new = old_parts.get(part, ()), new_parts.get(part, ())
        if old != new:
            phrases.append(f"{part}: {_difference(old, new)}")
    return phrases


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


def _differing_shapes(weights: Arrays, config: TrainConfig) -> list[str]:
    own = make_algorithm(config, sizes_of(config), rank=0, average=_alone).model.state_dict()
    there = {name: tuple(array.shape) for name, array in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in own.items()}
    return [
        f"{name} is {_shape(there, name)} there and {_shape(here, name)} here"
        for name in dict.fromkeys((*there, *here))
        if there.get(name) != here.get(name)
    ]


def _shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return f"of shape {shapes[name]}" if name in shapes else "not"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _alone(vector: Any) -> None:
    """The mean of one."""
