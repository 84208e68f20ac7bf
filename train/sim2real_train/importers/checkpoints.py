"""Checkpoints of rsl_rl, skrl and rl_games: the actor's layers and its observation normaliser."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from sim2real.errors import InputError
from sim2real_train.importers.perceptron import Activation, Head, Layer, Normalizer, Perceptron
from sim2real_train.importers.plain import as_mapping

__all__ = ["Choices", "Found", "chain", "check_known", "pick", "read_checkpoint_of", "unbounded"]

_RSL_RL_EPSILON: Final = 1e-2
_SKRL_EPSILON: Final = 1e-8
_RL_GAMES_EPSILON: Final = 1e-5
_LIMIT: Final = 5.0
"""At which skrl and rl_games clip normalised observations."""


@dataclass(frozen=True)
class Choices:
    """What a person says of a network that its file does not."""

    activation: Activation | None = None
    output_activation: Literal["none", "tanh"] | None = None
    normalizer: Normalizer | Literal["none", "checkpoint"] | None = None


@dataclass(frozen=True)
class Found:
    """A network, or what has to be asked before there is one."""

    told_by: str
    network: Perceptron | None
    """None: `asks` says what is open."""
    observation_size: int
    action_size: int
    asks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_checkpoint_of(loaded: Mapping[str, Any], choices: Choices, name: str) -> Found:
    """Return the network of a checkpoint of rsl_rl, skrl or rl_games, whichever it is.

    Raises:
        InputError: It is none of these, or has layers that are no perceptron's.
    """
    model = as_mapping(loaded.get("model"))
    if "actor_state_dict" in loaded or "model_state_dict" in loaded:
        return _rsl_rl(loaded, choices, name)
    if model is not None and any("a2c_network." in str(key) for key in model):
        return _rl_games(_state(model, f"{name}: model"), loaded, choices, name)
    if isinstance(loaded.get("policy"), Mapping):
        return _skrl(loaded, choices, name)
    keys = ", ".join(sorted(map(str, loaded))[:12]) or "nothing"
    raise InputError(
        f"{name}: expected a checkpoint of rsl_rl (actor_state_dict or model_state_dict), skrl (policy) or rl_games "
        f"(model), got one with {keys}"
    )


def _rsl_rl(loaded: Mapping[str, Any], choices: Choices, name: str) -> Found:
    """Version 5 keeps the actor by itself; 2 to 4 keep actor and critic together, 2 the normaliser beside them."""
    if "actor_state_dict" in loaded:
        state, layers, normalizer = (
            _state(loaded["actor_state_dict"], f"{name}: actor_state_dict"),
            "mlp",
            "obs_normalizer.",
        )
        known = r"mlp\.\d+\.(weight|bias)|obs_normalizer\..*|distribution\.(std|log_std)(_param)?"
    else:
        state = _state(loaded["model_state_dict"], f"{name}: model_state_dict")
        layers, normalizer = "actor", "actor_obs_normalizer."
        known = r"actor\.\d+\.(weight|bias)|(actor|critic)_obs_normalizer\..*|critic\..*|std|log_std"
        if isinstance(beside := loaded.get("obs_norm_state_dict"), Mapping):
            told = _state(beside, f"{name}: obs_norm_state_dict")
            state |= {f"{normalizer}{key}": value for key, value in told.items()}
    check_known(state, known, f"{name}: rsl_rl")
    moments = pick(state, normalizer)
    found = None
    if moments:
        mean, std = _vector(moments, "_mean", name), _vector(moments, "_std", name)
        found = Normalizer(mean=mean, divisor=std + _RSL_RL_EPSILON, limit=float("inf"))
    return _found(
        "an rsl_rl checkpoint",
        chain(state, layers, name),
        choices,
        normalizer=found,
        # Its heads are linear unless the distribution has a network of its own, which is refused above.
        head="none",
    )


def _skrl(loaded: Mapping[str, Any], choices: Choices, name: str) -> Found:
    state = _state(loaded["policy"], f"{name}: policy")
    containers = sorted({key.split(".")[0] for key in state if re.fullmatch(r"\w+_container\.\d+\.weight", key)})
    if len(containers) != 1:
        raise InputError(
            f"{name}: expected a skrl policy with one container of layers, got {', '.join(containers) or 'none'}; "
            "export it to ONNX and import that"
        )
    head = next((key for key in ("policy_layer", "output_layer") if f"{key}.weight" in state), None)
    known = rf"{containers[0]}\.\d+\.(weight|bias)|{head}\.(weight|bias)|value_layer\..*|log_std_parameter"
    check_known(state, known, f"{name}: skrl")
    layers = [*chain(state, containers[0], name), *([] if head is None else [_layer(state, head, name)])]
    asks: list[str] = []
    preprocessor: Any = loaded.get("observation_preprocessor")
    if preprocessor is None and "state_preprocessor" in loaded:
        if choices.normalizer is None:
            asks.append(
                "normalizer: of state_preprocessor, skrl 1 writes what normalises the policy's observations, skrl 2 "
                "what normalises the critic's states; give --normalizer checkpoint or none"
            )
        elif choices.normalizer == "checkpoint":
            preprocessor = loaded["state_preprocessor"]
    found = None
    if preprocessor is not None:
        moments = _state(preprocessor, f"{name}: observation_preprocessor")
        mean, variance = _vector(moments, "running_mean", name), _vector(moments, "running_variance", name)
        found = Normalizer(mean=mean, divisor=variance.sqrt() + _SKRL_EPSILON, limit=_LIMIT)
    return _found("a skrl checkpoint", layers, choices, normalizer=found, head=None, asks=asks)


def _rl_games(model: dict[str, torch.Tensor], loaded: Mapping[str, Any], choices: Choices, name: str) -> Found:
    state = {key.removeprefix("_orig_mod."): value for key, value in model.items()}
    known = (
        r"a2c_network\.(actor_mlp\.\d+|mu)\.(weight|bias)|a2c_network\.(critic_mlp|value)\..*|a2c_network\.sigma|"
        r"running_mean_std\..*|value_mean_std\..*"
    )
    check_known(state, known, f"{name}: rl_games")
    layers = [*chain(state, "a2c_network.actor_mlp", name), _layer(state, "a2c_network.mu", name)]
    moments = pick(state, "running_mean_std.")
    if not moments and isinstance(beside := loaded.get("running_mean_std"), Mapping):
        moments = _state(beside, f"{name}: running_mean_std")
    found = None
    if moments:
        mean, variance = _vector(moments, "running_mean", name), _vector(moments, "running_var", name)
        found = Normalizer(mean=mean, divisor=(variance + _RL_GAMES_EPSILON).sqrt(), limit=_LIMIT)
    return _found("an rl_games checkpoint", layers, choices, normalizer=found, head=None)


def _found(
    told_by: str,
    layers: Sequence[Layer],
    choices: Choices,
    *,
    normalizer: Normalizer | None,
    head: Literal["none", "tanh"] | None,
    asks: Sequence[str] = (),
) -> Found:
    """Put the parts together, or say which are open; `head` None: the file does not say."""
    _check_chain(layers, normalizer)
    open_questions = list(asks)
    if choices.activation is None:
        open_questions.append(f"activation: {told_by} does not say; give --activation elu, tanh, relu or silu")
    head = head or choices.output_activation
    if head is None:
        open_questions.append(f"output activation: {told_by} does not say; give --output-activation none or tanh")
    if isinstance(choices.normalizer, Normalizer):
        raise InputError(f"--normalizer: {told_by} says itself how it normalises; leave the file out")
    if choices.normalizer == "none" and normalizer is not None:
        raise InputError(f"--normalizer none: {told_by} has a normaliser; leave the option out")
    observation_size, action_size = layers[0].weight.shape[1], layers[-1].weight.shape[0]
    network = None
    if choices.activation is not None and head is not None and not open_questions:
        bounds = unbounded(action_size)
        kind: Literal["linear", "tanh"] = "tanh" if head == "tanh" else "linear"
        network = Perceptron(tuple(layers), choices.activation, normalizer, Head(kind, -bounds, bounds))
    notes = () if normalizer is not None else (f"{told_by} has no observation normaliser: raw observations go in",)
    return Found(told_by, network, observation_size, action_size, tuple(open_questions), notes)


def unbounded(action_size: int) -> torch.Tensor:
    """Return the upper bounds of a head without bounds of its own: 1."""
    return torch.ones(action_size)


def check_known(state: Mapping[str, torch.Tensor], known: str, name: str) -> None:
    """Refuse a network with parts that are not understood: what they do would be lost.

    Raises:
        InputError: There are such.
    """
    odd = sorted(key for key in state if re.fullmatch(known, key) is None)
    if odd:
        raise InputError(
            f"{name}: expected a plain perceptron, got {', '.join(odd[:6])}{' …' if len(odd) > 6 else ''} beside it "
            "(memory, convolutions, normalised layers and the like); export it to ONNX and import that"
        )


def pick(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the part of `state` under `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def chain(state: Mapping[str, torch.Tensor], prefix: str, name: str) -> list[Layer]:
    """Return the linear layers of a sequence ``prefix.0``, ``prefix.2``, …, with an activation after each but the last.

    Raises:
        InputError: It is none.
    """
    found = [re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.weight", key) for key in state]
    indices = sorted(int(match[1]) for match in found if match)
    if not indices or indices != list(range(0, 2 * len(indices), 2)):
        raise InputError(
            f"{name}: {prefix}: expected linear layers at 0, 2, 4, … with an activation after each, got them at "
            f"{indices}; export it to ONNX and import that"
        )
    return [_layer(state, f"{prefix}.{index}", name) for index in indices]


def _layer(state: Mapping[str, torch.Tensor], prefix: str, name: str) -> Layer:
    weight, bias = state.get(f"{prefix}.weight"), state.get(f"{prefix}.bias")
    if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1] or not weight.numel():
        raise InputError(
            f"{name}: {prefix}: expected a linear layer with weight and bias; export it to ONNX and import that"
        )
    return Layer(_floats(weight, f"{name}: {prefix}.weight"), _floats(bias, f"{name}: {prefix}.bias"))


def _check_chain(layers: Sequence[Layer], normalizer: Normalizer | None) -> None:
    for index, (first, second) in enumerate(itertools.pairwise(layers)):
        if first.weight.shape[0] != second.weight.shape[1]:
            raise InputError(
                f"source: layer {index} puts out {first.weight.shape[0]} values, layer {index + 1} takes "
                f"{second.weight.shape[1]}: its layers are no chain"
            )
    size = layers[0].weight.shape[1]
    if normalizer is not None and not normalizer.mean.shape == normalizer.divisor.shape == (size,):
        raise InputError(
            f"source: the normaliser has {tuple(normalizer.mean.shape)} and the network {size} inputs: they are "
            "not of one policy"
        )


def _vector(state: Mapping[str, torch.Tensor], key: str, name: str) -> torch.Tensor:
    if key not in state:
        raise InputError(f"{name}: its normaliser lacks {key}; save the checkpoint again")
    return _floats(state[key].reshape(-1), f"{name}: {key}")


def _floats(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{name}: expected finite numbers, got others: training diverged, or the file is damaged")
    return tensor.detach().float()


def _state(value: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict.

    Raises:
        InputError: It is none.
    """
    listed = as_mapping(value)
    if listed is None:
        raise InputError(f"{name}: expected a state dict, got {type(value).__name__}")
    odd = [str(key) for key, tensor in listed.items() if not isinstance(tensor, torch.Tensor)]
    if odd:
        raise InputError(f"{name}: expected tensors alone, got {', '.join(odd[:6])} beside them")
    return {str(key): tensor for key, tensor in listed.items()}
