"""`sim2real import` of checkpoints: the same actions, every unsaid field asked for, nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from sim2real.cli import main
from sim2real.contract import encode_contract
from sim2real.errors import InputError
from sim2real.npz import write_npz
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import unpublished
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import replay_golden
from sim2real_train.import_command import ImportArgs
from sim2real_train.importers.plain import as_mapping
from sim2real_train.importing import import_policy
from tests.train.foreign import ACT, CONTRACT, OBS, TASK, answers, imported, observations, perceptron, save, under

PENDULUM = get_task("pendulum-swingup")


def refusal(source: Path, out: Path, **options: Any) -> str:
    """What an import is refused with; nothing is left behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(InputError) as caught:
        import_policy(ImportArgs(source=source, out=out, **options))
    assert sorted(out.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("normalised", [False, True])
def test_rsl_rl_as_its_own_runner_saves_it(normalised: bool, tmp_path: Path) -> None:
    from rsl_rl.runners import OnPolicyRunner

    from sim2real_train.rsl_rl import RslRlVecEnv

    torch.manual_seed(0)
    shape: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [16, 8], "obs_normalization": normalised}
    config = {
        "num_steps_per_env": 16,
        "save_interval": 100,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": shape | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": dict(shape),
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
    }
    runner = OnPolicyRunner(
        RslRlVecEnv(TaskEnv(PENDULUM, 8, seed=3)), config, log_dir=str(tmp_path / "log"), device="cpu"
    )
    runner.logger.git_status_repos.clear()
    runner.learn(1)
    runner.save(str(tmp_path / "model.pt"))
    result, bundle = imported(tmp_path / "model.pt", tmp_path / "policy.s2r", task="pendulum-swingup", activation="elu")
    assert result.told_by == "an rsl_rl checkpoint"
    assert result.measurements == "the task in simulation"
    seen = observations(size=bundle.contract.model.observation_size)
    with torch.no_grad():
        expected = runner.alg.actor.as_jit().eval()(torch.from_numpy(seen)).numpy()
    np.testing.assert_allclose(answers(bundle, seen), expected, rtol=1e-5, atol=1e-5)
    own = PENDULUM.contract(bundle.contract.identity)
    assert bundle.contract == own
    assert replay_golden(load_engine("onnxruntime-cpu", bundle), bundle).passed


def rsl_rl_before_5(beside: bool) -> dict[str, Any]:
    net, critic = perceptron(), perceptron(outputs=1)
    moments = {
        "_mean": torch.randn(1, OBS),
        "_var": torch.rand(1, OBS),
        "_std": torch.rand(1, OBS),
        "count": torch.tensor(9),
    }
    state = under("actor", net.state_dict()) | under("critic", critic.state_dict()) | {"std": torch.ones(ACT)}
    if beside:
        return {"model_state_dict": state, "obs_norm_state_dict": moments, "iter": 5, "infos": None}
    return {"model_state_dict": state | under("actor_obs_normalizer", moments), "iter": 5, "infos": None}


@pytest.mark.parametrize("beside", [False, True])
def test_rsl_rl_before_version_5(beside: bool, tmp_path: Path) -> None:
    content = rsl_rl_before_5(beside)
    source = save(tmp_path / "model.pt", content)
    _, bundle = imported(source, tmp_path / "policy.s2r", task=TASK, activation="elu")
    state = content["model_state_dict"]
    moments = content["obs_norm_state_dict"] if beside else {k[21:]: v for k, v in state.items() if "_obs_norm" in k}
    net = perceptron()
    net.load_state_dict({name[6:]: value for name, value in state.items() if name.startswith("actor.")})
    seen = torch.from_numpy(observations())
    with torch.no_grad():
        expected = net((seen - moments["_mean"]) / (moments["_std"] + 1e-2)).numpy()
    np.testing.assert_allclose(answers(bundle, seen.numpy()), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("activation", "output"), [("elu", "none"), ("silu", "tanh")])
def test_skrl(activation: str, output: str, tmp_path: Path) -> None:
    kind = {"elu": nn.ELU, "silu": nn.SiLU}[activation]
    net = perceptron(activation=kind)
    layers = net.state_dict()
    policy = {f"net_container.{name}": value for name, value in layers.items() if not name.startswith("4.")}
    policy |= {f"policy_layer.{name[2:]}": value for name, value in layers.items() if name.startswith("4.")}
    policy |= {
        "log_std_parameter": torch.zeros(ACT),
        "value_layer.weight": torch.zeros(1, 16),
        "value_layer.bias": torch.zeros(1),
    }
    mean, variance = torch.randn(OBS, dtype=torch.float64), torch.rand(OBS, dtype=torch.float64)
    scaler = {"running_mean": mean, "running_variance": variance, "current_count": torch.tensor(5.0)}
    agent: dict[str, Any] = {"policy": policy, "value": policy, "optimizer": {"state": {}, "param_groups": []}}
    options: dict[str, Any] = {"task": TASK, "activation": activation, "output_activation": output}
    source = save(tmp_path / "agent.pt", agent | {"observation_preprocessor": scaler})
    _, bundle = imported(source, tmp_path / "policy.s2r", **options)
    seen = torch.from_numpy(observations())
    with torch.no_grad():
        normalised = torch.clamp((seen - mean.float()) / (variance.float().sqrt() + 1e-8), -5.0, 5.0)
        expected = torch.tanh(net(normalised)) if output == "tanh" else net(normalised)
    np.testing.assert_allclose(answers(bundle, seen.numpy()), expected.numpy(), rtol=1e-5, atol=1e-5)

    older = save(tmp_path / "older.pt", agent | {"state_preprocessor": scaler})
    assert "give --normalizer checkpoint or none" in refusal(older, tmp_path / "no.s2r", **options)
    _, same = imported(older, tmp_path / "older.s2r", **options, normalizer="checkpoint")
    np.testing.assert_array_equal(answers(same, seen.numpy()), answers(bundle, seen.numpy()))


def rl_games(net: nn.Sequential) -> dict[str, Any]:
    layers = net.state_dict()
    model = {f"a2c_network.actor_mlp.{name}": value for name, value in layers.items() if not name.startswith("4.")}
    model |= {f"a2c_network.mu.{name[2:]}": value for name, value in layers.items() if name.startswith("4.")}
    model |= {"a2c_network.sigma": torch.zeros(ACT), "a2c_network.value.weight": torch.zeros(1, 16)}
    model |= {"a2c_network.value.bias": torch.zeros(1), "value_mean_std.count": torch.ones(())}
    model |= {"running_mean_std.running_mean": torch.randn(OBS, dtype=torch.float64)}
    model |= {
        "running_mean_std.running_var": torch.rand(OBS, dtype=torch.float64),
        "running_mean_std.count": torch.ones(()),
    }
    # Its best reward is a number of numpy.
    return {
        "model": model,
        "epoch": 3,
        "frame": 96,
        "optimizer": {},
        "last_mean_rewards": np.float32(1.5),
        "env_state": None,
    }


def test_rl_games(tmp_path: Path) -> None:
    net = perceptron()
    content = rl_games(net)
    source = save(tmp_path / "last.pth", content)
    _, bundle = imported(source, tmp_path / "policy.s2r", task=TASK, activation="elu", output_activation="none")
    seen = torch.from_numpy(observations())
    mean, variance = (content["model"][f"running_mean_std.running_{name}"].float() for name in ("mean", "var"))
    with torch.no_grad():
        expected = net(torch.clamp((seen - mean) / torch.sqrt(variance + 1e-5), -5.0, 5.0)).numpy()
    np.testing.assert_allclose(answers(bundle, seen.numpy()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
@pytest.mark.parametrize("high", [1.0, 2.5], ids=["plain", "wide"])
def test_stable_baselines3(algorithm: str, high: float, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 comes with the 'bench' extra")
    import gymnasium as gym

    torch.manual_seed(0)
    contract = PENDULUM.contract(unpublished(PENDULUM))

    class Space(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (contract.model.observation_size,), np.float32)
        action_space = gym.spaces.Box(-high / 2, high, (1,), np.float32)

    kwargs = {"net_arch": [16, 8]} | ({} if algorithm == "PPO" else {"activation_fn": nn.ELU})
    model = getattr(sb3, algorithm)("MlpPolicy", Space(), policy_kwargs=kwargs, device="cpu")
    # As after training: actions reach their bounds.
    last = model.policy.action_net if algorithm == "PPO" else model.policy.actor.mu
    with torch.no_grad():
        last.weight.mul_(100.0 if algorithm == "PPO" else 1.0)
        last.bias.add_(0.5 * high)
    model.save(tmp_path / "model.zip")
    options: dict[str, Any] = {"task": "pendulum-swingup"}
    told = refusal(tmp_path / "model.zip", tmp_path / "no.s2r", **options)
    assert "does not say whether VecNormalize stood before it; give --normalizer none" in told
    _, bundle = imported(tmp_path / "model.zip", tmp_path / "policy.s2r", **options, normalizer="none")
    seen = observations(size=contract.model.observation_size)
    expected, _ = model.predict(seen, deterministic=True)
    got = answers(bundle, seen)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert got.max() > 0.99 * high or algorithm == "SAC"

    size = contract.model.observation_size
    moments = {"mean": np.linspace(-1, 1, size), "var": np.linspace(0.5, 2, size), "epsilon": np.array(1e-8)}
    (tmp_path / "vec.npz").write_bytes(write_npz(moments | {"clip_obs": np.array(1.5)}))
    _, bundle = imported(tmp_path / "model.zip", tmp_path / "vec.s2r", **options, normalizer=str(tmp_path / "vec.npz"))
    normalised = np.clip((seen - moments["mean"]) / np.sqrt(moments["var"] + 1e-8), -1.5, 1.5).astype(np.float32)
    expected, _ = model.predict(normalised, deterministic=True)
    np.testing.assert_allclose(answers(bundle, seen), expected, rtol=1e-5, atol=1e-5)


def checkpoint(folder: Path, **changes: torch.Tensor) -> Path:
    state = under("mlp", perceptron().state_dict()) | {"distribution.std_param": torch.ones(ACT)} | changes
    return save(folder / "model.pt", {"actor_state_dict": state, "iter": 1})


def test_every_field_that_is_unsaid_is_asked_for_by_its_path(tmp_path: Path) -> None:
    told = refusal(checkpoint(tmp_path), tmp_path / "policy.s2r")
    assert "activation: an rsl_rl checkpoint does not say; give --activation" in told

    def leaves(value: Any, path: str) -> set[str]:
        fields = as_mapping(value)
        if fields is None:
            return {path}
        return {leaf for name, each in fields.items() for leaf in leaves(each, f"{path}.{name}")}

    whole = leaves(json.loads(encode_contract(CONTRACT)), "contract")
    made_here = {f"contract.identity.{name}" for name in ("toolkit_version", "checkpoint_sha256", "config_sha256")}
    expected = (
        {path for path in whole if not path.startswith("contract.model")} - made_here - {"contract.schema_version"}
    )
    assert set(re.findall(r"contract(?:\.\w+)+", told)) == expected


@pytest.mark.parametrize(
    "path", [("joints", 3, "kp"), ("safety", "max_tilt"), ("observation", "terms", 2, "scale"), ("latency",)]
)
def test_a_field_that_a_contract_file_lacks_is_asked_for(path: tuple[str | int, ...], tmp_path: Path) -> None:
    document: Any = json.loads(encode_contract(CONTRACT))
    part = document
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    (tmp_path / "contract.json").write_text(json.dumps(document))
    told = refusal(checkpoint(tmp_path), tmp_path / "policy.s2r", activation="elu", contract=tmp_path / "contract.json")
    named = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    assert f"contract{named}" in told
    assert len(re.findall("does not say", told)) == 1


def test_a_whole_contract_in_a_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_bytes(encode_contract(CONTRACT))
    result, bundle = imported(
        checkpoint(tmp_path), tmp_path / "policy.s2r", activation="elu", contract=tmp_path / "contract.json"
    )
    assert result.measurements == "all that the contract allows"
    assert msgspec.structs.replace(bundle.contract, identity=CONTRACT.identity) == CONTRACT


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rnn.weight_ih_l0": torch.zeros(4, 4)}, "rnn.weight_ih_l0"),
        ({"mlp.5.weight": torch.ones(ACT)}, "got them at"),
        ({"mlp.2.weight": torch.zeros(16, 23)}, "no chain"),
        ({"mlp.0.weight": torch.full((24, OBS), float("nan"))}, "finite"),
        ({"mlp.0.weight": torch.zeros(24, OBS, dtype=torch.int64)}, "finite numbers"),
        ({"mlp.0.weight": torch.zeros(24, OBS + 1)}, "another task"),
        ({"mlp.4.weight": torch.zeros(2 * ACT, 16), "mlp.4.bias": torch.zeros(2 * ACT)}, "another robot or task"),
        ({"obs_normalizer._mean": torch.zeros(1, OBS)}, "lacks _std"),
        ({"obs_normalizer._mean": torch.zeros(1, 3), "obs_normalizer._std": torch.zeros(1, 3)}, "not of one policy"),
    ],
    ids=["memory", "norm layer", "chain", "nan", "integers", "observations", "actions", "half moments", "moments"],
)
def test_what_is_no_perceptron_is_refused(changes: dict[str, torch.Tensor], named: str, tmp_path: Path) -> None:
    assert named in refusal(checkpoint(tmp_path, **changes), tmp_path / "policy.s2r", task=TASK, activation="elu")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("joints: 5", "contract.joints: expected a list"),
        ("joints: [5]", "contract.joints[0]: expected a mapping"),
        ("joints: [{name: [1]}]", "contract.joints[0].name: expected a text"),
        ("action: {joints: all}", "contract.action.joints: expected a list"),
        ("timing: {step: 1}", "contract.timing: expected fields among control_period_ns"),
        ("schema_version: 2", "schema_version: expected 1, got 2"),
        ("model: {recurrent: [{input_name: h}]}", "networks with memory are not imported"),
        ("commands: [{name: x, unit: m/s, low: a, high: 1, initial: 0}]", "commands"),
        ("a: !!python/name:os.system ''", "plain YAML"),
    ],
)
def test_a_contract_file_that_is_none(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text(text)
    told = refusal(
        checkpoint(tmp_path), tmp_path / "p.s2r", activation="elu", task=TASK, contract=tmp_path / "contract.yaml"
    )
    assert named in told


class Payload:
    """What an attacker would put into a checkpoint."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_a_payload_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    state = {"actor_state_dict": under("mlp", perceptron().state_dict()), "infos": Payload()}
    plain = io.BytesIO()
    pickle.dump(state, plain)
    (tmp_path / "plain.pt").write_bytes(plain.getvalue())
    (tmp_path / "torch.pt").write_bytes(save(tmp_path / "saved", state).read_bytes())
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {":serialized:": "gASVAAA="}}))
        archive.write(tmp_path / "saved", "policy.pth")
    for name in ("plain.pt", "torch.pt", "model.zip"):
        told = refusal(tmp_path / name, tmp_path / "policy.s2r", task=TASK, activation="elu", normalizer="none")
        assert "nothing in it was run" in told or "expected" in told
    assert list(folder.iterdir()) == []


def test_programs_bombs_and_scraps_are_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # It is on its way out of torch, and still what many policies are saved as.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(perceptron(), torch.zeros(1, OBS)), str(tmp_path / "policy.pt"))
    assert "TorchScript" in refusal(tmp_path / "policy.pt", tmp_path / "policy.s2r", task=TASK)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.pth", b"")
        with archive.open("data", "w", force_zip64=True) as member:
            for _ in range(33):
                member.write(bytes(16 << 20))
    assert "unpacked" in refusal(tmp_path / "bomb.zip", tmp_path / "policy.s2r", task=TASK)
    whole = checkpoint(tmp_path).read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        assert "expected" in refusal(tmp_path / "cut.pt", tmp_path / "policy.s2r", task=TASK, activation="elu")
    save(tmp_path / "odd.pt", {"weights": torch.zeros(3)})
    assert "expected a checkpoint of rsl_rl" in refusal(tmp_path / "odd.pt", tmp_path / "policy.s2r", task=TASK)
    assert "sim2real export makes a bundle" in refusal(tmp_path, tmp_path / "policy.s2r", task=TASK)
    assert "cannot be read" in refusal(tmp_path / "none.pt", tmp_path / "policy.s2r", task=TASK)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = checkpoint(tmp_path), tmp_path / "policy.s2r"
    assert main(["import", str(source), "--out", str(out), "--task", TASK]) == 2
    assert not out.exists()
    assert "give --activation" in capsys.readouterr().err
    assert main(["import", str(source), "--out", str(out), "--task", TASK, "--activation", "elu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["told_by"] == "an rsl_rl checkpoint"
    assert out.exists()
