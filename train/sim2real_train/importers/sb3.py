"""Stable-Baselines3's zip files of PPO and SAC, read without Stable-Baselines3.

``data`` is JSON; what it could not write as JSON it holds as pickles in base64 (``:serialized:``), which are left
alone: beside each stands in words what is needed here. ``policy.pth`` is a state dict.
"""

from __future__ import annotations

import json
import re
import reprlib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from sim2real.errors import BundleError, InputError
from sim2real.npz import read_npz
from sim2real_train.importers.checkpoints import Choices, Found, chain, check_known, unbounded
from sim2real_train.importers.perceptron import ACTIVATIONS, Activation, Head, Normalizer, Perceptron
from sim2real_train.importers.plain import as_mapping, inner
from sim2real_train.importers.torch_files import load_weights, open_zip, read_source

__all__ = ["is_sb3", "normalizer_from_file", "read_sb3"]

_DATA, _POLICY = "data", "policy.pth"
_MOST_JSON_BYTES: Final = 16 << 20
_TOLD_BY: Final = "a Stable-Baselines3 zip"
_KINDS: Final[Mapping[str, tuple[str, str, Activation, str]]] = {
    "stable_baselines3.common.policies": (
        "mlp_extractor.policy_net",
        "action_net",
        "tanh",
        r"mlp_extractor\.(policy|value)_net\..*|(action|value)_net\.(weight|bias)|log_std",
    ),
    "stable_baselines3.sac.policies": (
        "actor.latent_pi",
        "actor.mu",
        "relu",
        r"actor\.(latent_pi\.\d+|mu|log_std)\.(weight|bias)|critic(_target)?\..*",
    ),
}
"""Module of the policy class: where its layers are, its activation unless `policy_kwargs` names one, its keys."""
_SAC: Final = "stable_baselines3.sac.policies"


def is_sb3(names: list[str]) -> bool:
    """Whether a zip with these members is one of Stable-Baselines3."""
    return {_DATA, _POLICY} <= set(names)


def read_sb3(content: bytes, choices: Choices, name: str) -> Found:
    """Return the network of a zip file of Stable-Baselines3.

    Raises:
        InputError: It is damaged, or of another algorithm, or no plain perceptron.
    """
    with open_zip(content, name) as archive:
        data = _json(_member(archive, _DATA, name, most=_MOST_JSON_BYTES), name)
        state = dict(load_weights(_member(archive, _POLICY, name), f"{name}: {_POLICY}"))
    module = _text(data, "policy_class", "__module__")
    if module not in _KINDS:
        raise InputError(f"{name}: expected a policy of PPO or SAC, got one of {module or 'a class that is not named'}")
    if data.get("use_sde"):
        raise InputError(
            f"{name}: expected a policy without gSDE (use_sde), got one with it; export it to ONNX and import that"
        )
    layers_at, head_at, default, known = _KINDS[module]
    tensors = {str(key): value for key, value in state.items() if isinstance(value, torch.Tensor)}
    if len(tensors) != len(state):
        raise InputError(f"{name}: {_POLICY}: expected tensors alone; save it again")
    check_known(tensors, known, f"{name}: Stable-Baselines3")
    # The last layer stands by itself; under the number that continues the sequence it is one more of the chain.
    count = len([key for key in tensors if re.fullmatch(rf"{re.escape(layers_at)}\.\d+\.weight", key)])
    renamed = dict(tensors)
    for part in ("weight", "bias"):
        if f"{head_at}.{part}" in tensors:
            renamed[f"{layers_at}.{2 * count}.{part}"] = tensors[f"{head_at}.{part}"]
    layers = chain(renamed, layers_at, name)
    observation_size, action_size = layers[0].weight.shape[1], layers[-1].weight.shape[0]
    head = _head(data, action_size, squashed=module == _SAC, name=name)
    if choices.output_activation is not None:
        raise InputError(
            f"--output-activation: {_TOLD_BY} says itself what follows its last layer; leave the option out"
        )
    asks: list[str] = []
    if choices.normalizer is None or choices.normalizer == "checkpoint":
        asks.append(
            f"normalizer: {_TOLD_BY} does not say whether VecNormalize stood before it; give --normalizer none, or "
            "--normalizer FILE.npz with mean, var, epsilon and clip_obs of it"
        )
    network = None
    if not asks:
        normalizer = choices.normalizer if isinstance(choices.normalizer, Normalizer) else None
        if normalizer is not None and normalizer.mean.shape != (observation_size,):
            raise InputError(
                f"--normalizer: expected mean and var of {observation_size} numbers, got {tuple(normalizer.mean.shape)}"
            )
        network = Perceptron(tuple(layers), _activation(data, default, choices, name), normalizer, head)
    return Found(_TOLD_BY, network, observation_size, action_size, tuple(asks))


def normalizer_from_file(path: Path) -> Normalizer:
    """Return what VecNormalize does to observations, from an npz file with mean, var, epsilon and clip_obs.

    Raises:
        InputError: It is none.
    """
    try:
        arrays = read_npz(read_source(path))
    except BundleError as error:
        raise InputError(f"--normalizer {path}: expected what sim2real.npz.write_npz writes: {error}") from error
    wanted = {"mean": 1, "var": 1, "epsilon": 0, "clip_obs": 0}
    if {key: array.ndim for key, array in arrays.items()} != wanted or arrays["mean"].shape != arrays["var"].shape:
        raise InputError(
            f"--normalizer {path}: expected the vectors mean and var of one length and the numbers epsilon and "
            f"clip_obs, got {', '.join(f'{key}{list(array.shape)}' for key, array in arrays.items())}"
        )
    variance = torch.tensor(arrays["var"] + arrays["epsilon"], dtype=torch.float64)
    limit = float(arrays["clip_obs"])
    if not bool((variance > 0.0).all()) or limit <= 0.0:
        raise InputError(f"--normalizer {path}: expected var + epsilon > 0 and clip_obs > 0")
    return Normalizer(torch.tensor(arrays["mean"]).float(), variance.sqrt().float(), limit)


def _member(archive: zipfile.ZipFile, member: str, name: str, *, most: int | None = None) -> bytes:
    try:
        info = archive.getinfo(member)
        if most is not None and info.file_size > most:
            raise InputError(f"{name}: {member}: expected at most {most >> 20} MiB, got {info.file_size >> 20} MiB")
        return archive.read(info)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError, OSError) as error:
        raise InputError(f"{name}: {member} is damaged or locked ({error}); copy it again") from error


def _json(content: bytes, name: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: {_DATA}: expected JSON; save it again") from error
    fields = as_mapping(data)
    if fields is None:
        raise InputError(f"{name}: {_DATA}: expected an object of JSON, got {type(data).__name__}")
    return {str(key): value for key, value in fields.items()}


def _text(data: dict[str, Any], key: str, part: str) -> str:
    told = inner(data, key, part)
    return told if isinstance(told, str) else ""


def _activation(data: dict[str, Any], default: Activation, choices: Choices, name: str) -> Activation:
    """Where `policy_kwargs` names none, the policy class has the same one in all versions."""
    told = inner(data, "policy_kwargs", "activation_fn")
    if told is None:
        found = default
    else:
        match = re.search(r"torch\.nn\.modules\.activation\.(\w+)'>", str(told))
        by_class: dict[str, Activation] = {kind.__name__: key for key, kind in ACTIVATIONS.items()}
        if match is None or match[1] not in by_class:
            raise InputError(
                f"{name}: activation_fn: expected one of {', '.join(by_class)}, got {reprlib.repr(str(told))}; export "
                "it to ONNX and import that"
            )
        found = by_class[match[1]]
    if choices.activation not in (None, found):
        raise InputError(f"--activation {choices.activation}: {_TOLD_BY} says {found}; leave the option out")
    return found


def _head(data: dict[str, Any], action_size: int, *, squashed: bool, name: str) -> Head:
    """Its PPO clips actions to the bounds of the action space, its SAC spans them by tanh."""
    low, high = (_bound(data, key, action_size, name) for key in ("low", "high"))
    if bool(torch.isinf(low).all() and torch.isinf(high).all()) and not squashed:
        return Head("linear", -unbounded(action_size), unbounded(action_size))
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all() and (low < high).all()):
        raise InputError(f"{name}: action_space: expected finite bounds, low < high, or none; got {low} and {high}")
    return Head("tanh" if squashed else "clip", low, high)


def _bound(data: dict[str, Any], key: str, action_size: int, name: str) -> torch.Tensor:
    text = _text(data, "action_space", key)
    values = re.findall(r"-?inf|[-+]?\d+\.?\d*(?:e[-+]?\d+)?", text)
    if re.fullmatch(r"\[[-+.einf\d\s]*\]", text) is None or len(values) != action_size:
        raise InputError(
            f"{name}: action_space.{key}: expected {action_size} numbers in words, got {reprlib.repr(text)}; save it "
            "with Stable-Baselines3 of 2.0 or later"
        )
    return torch.tensor([float(value) for value in values])
