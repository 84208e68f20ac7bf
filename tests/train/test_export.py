from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from sim2real.bundle import read_bundle
from sim2real.contract import PolicyContract, decode_contract
from sim2real.errors import InputError
from sim2real.golden import MIN_GOLDEN_STEPS, Golden
from sim2real.layout import observation_names
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY, read_metadata
from sim2real.signing import generate_signing_key, load_signing_key
from sim2real.tasks import get_task
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import replay_golden
from sim2real_train.checkpoint import State, read_checkpoint, write_checkpoint
from sim2real_train.encoder import ConvConfig
from sim2real_train.export import ExportResult, actor_of, contract_of, export
from sim2real_train.findings import findings_of
from sim2real_train.golden_run import record_golden
from sim2real_train.models import Actor, ModelConfig, ObservationNormalizer
from sim2real_train.onnx_graph import IR_VERSION, OPSET, actor_to_onnx
from sim2real_train.parity import TOLERANCE, prove
from sim2real_train.policy import TorchPolicy
from sim2real_train.ppo import PpoConfig
from tests.train.builders import TASK, iterate, make_worker, metrics, small_config

MODELS = {
    "mlp": ModelConfig(hidden=(32, 16), activation="elu"),
    "tanh": ModelConfig(hidden=(16,), activation="tanh"),
    "gru": ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=12),
    "lstm": ModelConfig(hidden=(16,), activation="relu", recurrent="lstm", recurrent_size=12),
    "cnn": ModelConfig(hidden=(16,), activation="silu", encoder=ConvConfig(term="position", channels=(8, 4), kernel=2)),
    "grid-gru": ModelConfig(
        hidden=(16,),
        encoder=ConvConfig(term="position", grid=(2, 3), channels=(4,), kernel=2),
        recurrent="gru",
        recurrent_size=12,
    ),
}


def task_name(model: ModelConfig) -> str:
    """The pendulum; for an encoder the arm, whose observation has a history of positions."""
    return TASK if model.encoder is None else "so101-reach"


def trained_checkpoint(folder: Path, model: ModelConfig, task: str | None = None) -> Path:
    """A checkpoint after two real iterations, so that the normaliser and all weights have moved."""
    algorithm = PpoConfig(num_steps=16, epochs=2, minibatches=2, learning_rate=1e-2)
    config = small_config(task=task or task_name(model), model=model, algorithm=algorithm)
    worker = make_worker(config)
    for _ in range(2):
        iterate(worker)
    state = worker.state()
    write_checkpoint(
        folder,
        State(
            schema_version=2,
            toolkit_version="0",
            config=config,
            iteration=2,
            wall_seconds=1.0,
            metrics=(metrics(1), metrics(2)),
            generators=(state.generator,),
            members={},
        ),
        worker.learner_state() | {"worker-0": state.arrays},
    )
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the checkpoint of a kind, trained once."""

    @functools.cache
    def train(kind: str) -> Path:
        return trained_checkpoint(tmp_path_factory.mktemp(kind), MODELS[kind])

    return train


@pytest.fixture(scope="module", params=MODELS)
def result(request: pytest.FixtureRequest, trained: Callable[[str], Path]) -> ExportResult:
    """What was exported of each kind, next to its checkpoint."""
    checkpoint = trained(request.param)
    return export(checkpoint, checkpoint / "policy.s2r")


def test_what_is_exported_is_what_was_trained(result: ExportResult) -> None:
    """Trainer, ONNX Runtime and the robot's engine agree over sequences of raw measurements."""
    assert result.passed
    assert result.bundle is not None
    assert {each.engine for each in result.parity} == {"onnxruntime", "edge, onnxruntime-cpu"}
    assert all(each.steps >= 200 and each.error <= TOLERANCE for each in result.parity)
    bundle = read_bundle(result.bundle)
    assert bundle.contract_hash.hex() == result.contract_sha256
    assert bundle.contract.identity.checkpoint_sha256 == result.checkpoint_sha256
    assert len(bundle.golden.signals) >= 400
    assert {0, 300} <= set(np.flatnonzero(bundle.golden.episode_start).tolist())
    assert replay_golden(load_engine("onnxruntime-cpu", bundle), bundle).passed


def test_the_file_is_complete_and_tells_nothing_of_the_machine(result: ExportResult, tmp_path: Path) -> None:
    assert result.bundle is not None
    export(result.bundle.parent, tmp_path / "again.s2r")
    first, second = (read_bundle(path) for path in (result.bundle, tmp_path / "again.s2r"))
    assert first.models == second.models
    content = first.models["float32"]
    assert decode_contract(read_metadata(content)[CONTRACT_METADATA_KEY].encode()) == first.contract
    assert str(Path.home()).encode() not in content
    assert str(Path(__file__).parents[2]).encode() not in content
    model = onnx.load_from_string(content)
    assert (model.opset_import[0].version, model.ir_version) == (OPSET, IR_VERSION)
    recurrent = first.contract.model.recurrent
    assert [value.name for value in model.graph.input] == ["obs", *(state.input_name for state in recurrent)]
    assert [value.name for value in model.graph.output] == ["action", *(state.output_name for state in recurrent)]


def test_signed_with_the_given_key(trained: Callable[[str], Path], tmp_path: Path) -> None:
    public_key = generate_signing_key(tmp_path / "release.key")
    export(trained("mlp"), tmp_path / "policy.s2r", signing_key=load_signing_key(tmp_path / "release.key"))
    assert read_bundle(tmp_path / "policy.s2r", trusted_keys=[public_key]).signature.trusted


class Exported:
    """An actor with everything that an export of it is made from."""

    def __init__(self, folder: Path) -> None:
        checkpoint = read_checkpoint(folder)
        task = get_task(checkpoint.state.config.task)
        self.actor: Actor = actor_of(checkpoint)
        self.contract: PolicyContract = contract_of(checkpoint, task, self.actor)
        self.golden: Golden = record_golden(TorchPolicy(self.actor), task, self.contract, steps=2 * MIN_GOLDEN_STEPS)

    def passes(self, exported: bytes) -> bool:
        return all(each.passed for each in prove(TorchPolicy(self.actor), self.contract, exported, self.golden))


@pytest.fixture(scope="module")
def exported(trained: Callable[[str], Path]) -> Callable[[str], Exported]:
    """Returns the model of a kind, made once, whose right export passes."""

    @functools.cache
    def make(kind: str) -> Exported:
        made = Exported(trained(kind))
        assert made.passes(actor_to_onnx(made.actor, made.contract))
        return made

    return make


@pytest.fixture(scope="module")
def gru(exported: Callable[[str], Exported]) -> Exported:
    return exported("gru")


def test_it_says_where_the_largest_error_is(gru: Exported) -> None:
    """Of an export that computes one action otherwise than was trained, in that action."""
    wrong = copy.deepcopy(gru.actor)
    with torch.no_grad():
        wrong.last_layer.bias[0] += 0.1
    found = prove(TorchPolicy(gru.actor), gru.contract, actor_to_onnx(wrong, gru.contract), gru.golden)
    first = gru.contract.action.joints[0]
    assert all(re.fullmatch(rf"{first} in step \d+", each.where) for each in found if each.engine == "onnxruntime")


def test_what_a_policy_does_not_use_is_told_and_subnormal_weights_are_0(gru: Exported) -> None:
    odd = copy.deepcopy(gru.actor)
    tiny = np.float32(1e-39)
    with torch.no_grad():
        odd.last_layer.weight[0] = 0.0
        odd.last_layer.weight[0, :3] = float(tiny)
        for layer in odd.network.modules():
            if isinstance(layer, torch.nn.Linear) and layer is not odd.last_layer:
                layer.weight[1] = 0.0
                break
    golden = dataclasses.replace(gru.golden, observations=gru.golden.observations.copy())
    golden.observations[:, 2] = 0.5
    found = findings_of(odd, gru.contract, golden)
    assert found.subnormal_weights == 3
    assert sum(found.dead_channels.values()) == 1
    assert found.constant_inputs[-1] == observation_names(gru.contract)[2]
    assert [line.partition(":")[0] for line in found.lines()] == [
        "inputs that did not move in the golden run",
        "dead channels (no weights)",
        "subnormal weights, written as 0",
    ]
    model = onnx.load_from_string(actor_to_onnx(odd, gru.contract))
    for each in model.graph.initializer:
        values = onnx.numpy_helper.to_array(each)
        assert values.dtype != np.float32 or not ((values != 0.0) & (np.abs(values) < np.finfo(np.float32).tiny)).any()


def drop_normaliser(actor: Actor) -> None:
    actor.normalizer = ObservationNormalizer(actor.observation_size)


def order_gates(actor: Actor, order: tuple[int, ...]) -> None:
    assert actor.memory is not None
    for layer in (actor.memory.input, actor.memory.hidden):
        for tensor in (layer.weight.data, layer.bias.data):
            gates = tensor.clone().chunk(len(order))
            tensor.copy_(torch.cat([gates[gate] for gate in order]))


def swap_gates(actor: Actor) -> None:
    """Update gate first, as in ONNX's own GRU operator, where torch has the reset gate first."""
    order_gates(actor, (1, 0, 2))


def onnx_gates(actor: Actor) -> None:
    """Input, output, forget, new, as in ONNX's own LSTM operator, where torch has the output gate last."""
    order_gates(actor, (0, 3, 1, 2))


def lose_hidden_bias(actor: Actor) -> None:
    """The form of a GRU that applies the reset gate before the hidden product has no such bias."""
    assert actor.memory is not None
    actor.memory.hidden.bias.data[2 * actor.memory.size :] = 0.0


def tighten_clip(actor: Actor) -> None:
    actor.normalizer.limit = 1.0


def turn_history(actor: Actor) -> None:
    """Newest frame first, where training had the oldest first."""
    assert actor.encoder is not None
    actor.encoder.term = actor.encoder.term.reshape(actor.encoder.shape).flip(-1).flatten()


def interleave_history(actor: Actor) -> None:
    """The columns of a term frame by frame, where 1-D convolutions want them element by element."""
    assert actor.encoder is not None
    actor.encoder.term = actor.encoder.term.sort().values


def drop_head(actor: Actor) -> None:
    actor.network[-1] = nn.Identity()


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        *(("gru", mistake) for mistake in (drop_normaliser, swap_gates, lose_hidden_bias, tighten_clip)),
        ("lstm", onnx_gates),
        *(("cnn", mistake) for mistake in (turn_history, interleave_history)),
    ],
)
def test_the_gate_fails_on_the_old_mistakes(
    exported: Callable[[str], Exported], kind: str, mistake: Callable[[Actor], None]
) -> None:
    """Cases 2, 3, 5, 6: the same wrong file that was shipped elsewhere must not pass here."""
    right = exported(kind)
    wrong = copy.deepcopy(right.actor)
    mistake(wrong)
    assert not right.passes(actor_to_onnx(wrong, right.contract))


@pytest.mark.parametrize(("kind", "forgotten"), [("gru", "state"), ("lstm", "hidden"), ("lstm", "cell")])
def test_the_gate_fails_when_the_state_is_not_fed_back(
    exported: Callable[[str], Exported], kind: str, forgotten: str
) -> None:
    right = exported(kind)
    model = onnx.load_from_string(actor_to_onnx(right.actor, right.contract))
    (state,) = (each for each in right.contract.model.recurrent if each.input_name == forgotten)
    zeros = onnx.numpy_helper.from_array(np.zeros(state.shape, np.float32), "forgotten")
    model.graph.initializer.append(zeros)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == state.input_name:
                node.input[index] = "forgotten"
    assert not right.passes(model.SerializeToString())


def test_one_step_would_not_have_shown_it(gru: Exported) -> None:
    """Why sequences: in its first step, a file that forgets its state is right."""
    model = onnx.load_from_string(actor_to_onnx(gru.actor, gru.contract))
    (state,) = gru.contract.model.recurrent
    onnx.checker.check_model(model)
    first = Golden(**{name: getattr(gru.golden, name)[:1] for name in Golden.__dataclass_fields__})
    observation = torch.from_numpy(first.observations)
    action, _ = gru.actor(observation, *gru.actor.initial_state(1))
    assert np.allclose(action.numpy(), first.actions, atol=TOLERANCE)
    assert state.initial_value == 0.0


def test_a_layer_without_a_known_form_is_named(gru: Exported) -> None:
    wrong = copy.deepcopy(gru.actor)
    drop_head(wrong)
    with pytest.raises(InputError, match="no ONNX form is known for the layer Identity"):
        actor_to_onnx(wrong, gru.contract)


def changed_checkpoint(trained: Path, folder: Path, name: str, factor: float) -> Path:
    """A copy of a checkpoint, whose weights `name` are multiplied by `factor`."""
    checkpoint = read_checkpoint(trained)
    arrays = {role: dict(tensors) for role, tensors in checkpoint.arrays.items()}
    arrays["weights"][name] = arrays["weights"][name] * np.float32(factor)
    write_checkpoint(folder, checkpoint.state, arrays)
    return folder


def test_failed_parity_writes_nothing(trained: Callable[[str], Path], tmp_path: Path) -> None:
    """A memory with weights this large is chaotic: the last bits of two engines part it within a sequence."""
    folder = changed_checkpoint(trained("gru"), tmp_path / "run", "actor.memory.hidden.weight", 30.0)
    result = export(folder, tmp_path / "policy.s2r")
    assert not result.passed
    assert result.bundle is None
    assert not (tmp_path / "policy.s2r").exists()


def test_diverged_weights_are_named(trained: Callable[[str], Path], tmp_path: Path) -> None:
    folder = changed_checkpoint(trained("mlp"), tmp_path / "run", "actor.network.0.0.weight", np.nan)
    with pytest.raises(InputError, match=r"actor\.network\.0\.0\.weight are not finite"):
        export(folder, tmp_path / "policy.s2r")
