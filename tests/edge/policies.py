"""Small real policies for the tests: ONNX graphs, with golden runs from the same networks written in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sim2real.action import ActionMapper
from sim2real.bundle import Bundle, write_bundle
from sim2real.contract import (
    SCHEMA_VERSION,
    Action,
    Command,
    DeadlineLadder,
    Fallback,
    Identity,
    Joint,
    Model,
    Observation,
    ObservationTerm,
    PolicyContract,
    RecurrentState,
    Safety,
    Timing,
    encode_contract,
)
from sim2real.golden import Golden
from sim2real.observation import ObservationBuilder
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real.tasks.base import get_task, unpublished

Array = npt.NDArray[np.float64]
MS = 1_000_000
STEPS = 240
HIDDEN = 8


@dataclass(frozen=True)
class Policy:
    """A network twice: as an ONNX graph and as a numpy function of (observation, state) to (action, state)."""

    contract: PolicyContract
    nodes: Sequence[onnx.NodeProto]
    weights: Sequence[onnx.TensorProto]
    compute: Callable[[Array, Array], tuple[Array, Array]]

    def model(self, contract: PolicyContract | None = None) -> bytes:
        """The ONNX file, with the metadata of another contract if one is given."""
        shape = self.contract.model
        inputs = [_value(shape.observation_name, (1, shape.observation_size))]
        outputs = [_value(shape.action_name, (1, shape.action_size))]
        inputs += [_value(state.input_name, state.shape) for state in shape.recurrent]
        outputs += [_value(state.output_name, state.shape) for state in shape.recurrent]
        graph = helper.make_graph(self.nodes, "policy", inputs, outputs, self.weights)
        return finish(graph, contract or self.contract)

    def golden(self, steps: int = STEPS) -> Golden:
        """A run over smooth measurements; three episodes."""
        contract = self.contract
        builder, mapper = ObservationBuilder(contract, 1), ActionMapper(contract, 1)
        joint_pos = builder.layout.slices["joint_pos"]
        signals = smooth_measurements(contract, steps)
        commands = np.tile([0.3 * command.high for command in contract.commands], (steps, 1))
        starts = np.arange(steps) % (steps // 3) == 0
        observations: list[npt.NDArray[np.float32]] = []
        actions: list[npt.NDArray[np.float32]] = []
        targets: list[Array] = []
        action = state = np.zeros(0)
        for step in range(steps):
            builder.signals[0], builder.commands[0] = signals[step], commands[step]
            builder.last_action[:] = 0.0 if starts[step] else action.astype(np.float32)
            if starts[step]:
                state = np.concatenate(
                    [np.full(s.shape, s.initial_value).ravel() for s in contract.model.recurrent] or [action[:0]]
                )
                mapper.reset(signals[step : step + 1, joint_pos])
            observation = (builder.reset() if starts[step] else builder.update())[0].copy()
            action, state = self.compute(observation.astype(np.float64), state)
            observations.append(observation)
            actions.append(action.astype(np.float32))
            targets.append(mapper.apply(actions[-1][None])[0].copy())
        return Golden(
            signals=signals,
            commands=commands,
            episode_start=starts,
            observations=np.array(observations),
            actions=np.array(actions),
            targets=np.array(targets),
        )

    def write(self, path: Path) -> Bundle:
        """The bundle, signed with a one-time key."""
        models = {"float32": self.model()}
        return write_bundle(path, contract=self.contract, models=models, golden=self.golden(), created_by="tests")


def finish(graph: onnx.GraphProto, contract: PolicyContract) -> bytes:
    """The ONNX file of a graph, with a contract in its metadata."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {CONTRACT_METADATA_KEY: encode_contract(contract).decode()})
    return model.SerializeToString()


def smooth_measurements(contract: PolicyContract, steps: int) -> Array:
    """Measurements that stay inside every limit, upright, shape (steps, S)."""
    builder = ObservationBuilder(contract, 1)
    slices, rng = builder.layout.slices, np.random.default_rng(3)
    wave = np.sin(0.05 * np.arange(steps)[:, None] + rng.uniform(0.0, 6.0, builder.layout.size))
    signals = 0.1 * wave
    signals[:, slices["joint_pos"]] += [joint.default_position for joint in contract.joints]
    if "base_quat" in slices:
        signals[:, slices["base_quat"]] = [1.0, 0.0, 0.0, 0.0]
    if "projected_gravity" in slices:
        signals[:, slices["projected_gravity"]] = [0.0, 0.0, -1.0]
    return signals


def pendulum_contract() -> PolicyContract:
    """The contract of the toolkit's own task."""
    task = get_task("pendulum-swingup")
    return task.contract(unpublished(task))


def mlp(contract: PolicyContract, seed: int = 0, gain: float = 0.1, hidden: int = 32) -> Policy:
    """Normalise, clip, two hidden layers of tanh."""
    rng, model = np.random.default_rng(seed), contract.model
    sizes = (model.observation_size, hidden, hidden, model.action_size)
    mean, inverse = rng.normal(size=sizes[0]) * 0.1, rng.uniform(0.5, 2.0, sizes[0])
    layers = [(rng.normal(size=pair) * gain, rng.normal(size=pair[1]) * gain) for pair in itertools.pairwise(sizes)]
    # The reference computes with the weights that the file holds, in float64.
    mean, inverse = _float32(mean), _float32(inverse)
    layers = [(_float32(weight), _float32(bias)) for weight, bias in layers]

    nodes = [
        helper.make_node("Sub", [model.observation_name, "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "inverse"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "low", "high"], ["x0"]),
    ]
    weights = [_tensor("mean", mean), _tensor("inverse", inverse), _tensor("low", -5.0), _tensor("high", 5.0)]
    for index, (weight, bias) in enumerate(layers):
        last = index == len(layers) - 1
        out = model.action_name if last else f"h{index}"
        nodes.append(helper.make_node("Gemm", [f"x{index}", f"w{index}", f"b{index}"], [out]))
        if not last:
            nodes.append(helper.make_node("Tanh", [out], [f"x{index + 1}"]))
        weights += [_tensor(f"w{index}", weight), _tensor(f"b{index}", bias)]

    def compute(observation: Array, state: Array) -> tuple[Array, Array]:
        x = np.clip((observation - mean) * inverse, -5.0, 5.0)
        for weight, bias in layers[:-1]:
            x = np.tanh(x @ weight + bias)
        return x @ layers[-1][0] + layers[-1][1], state

    return Policy(contract, nodes, weights, compute)


def gru(contract: PolicyContract, seed: int = 0) -> Policy:
    """One GRU layer (the kind that torch exports: linear_before_reset = 1) and a linear head."""
    rng, model = np.random.default_rng(seed), contract.model
    observations, actions = model.observation_size, model.action_size
    w = _float32(rng.normal(size=(1, 3 * HIDDEN, observations)) * 0.5)
    r = _float32(rng.normal(size=(1, 3 * HIDDEN, HIDDEN)) * 0.5)
    b = _float32(rng.normal(size=(1, 6 * HIDDEN)) * 0.2)
    head = _float32(rng.normal(size=(HIDDEN, actions)) * 0.5)
    (state,) = model.recurrent
    nodes = [
        helper.make_node("Unsqueeze", [model.observation_name, "axes"], ["sequence"]),
        helper.make_node(
            "GRU",
            ["sequence", "w", "r", "b", "", state.input_name],
            ["", state.output_name],
            hidden_size=HIDDEN,
            linear_before_reset=1,
        ),
        helper.make_node("Squeeze", [state.output_name, "axes"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], [model.action_name]),
    ]
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    weights = [_tensor("w", w), _tensor("r", r), _tensor("b", b), _tensor("head", head), axes]

    def compute(observation: Array, hidden: Array) -> tuple[Array, Array]:
        # https://onnx.ai/onnx/operators/onnx__GRU.html, gates in the order z, r, h.
        wz, wr, wh = np.split(w[0] @ observation + b[0, : 3 * HIDDEN], 3)
        rz, rr, rh = np.split(r[0] @ hidden + b[0, 3 * HIDDEN :], 3)
        update, reset = 1 / (1 + np.exp(-wz - rz)), 1 / (1 + np.exp(-wr - rr))
        candidate = np.tanh(wh + reset * rh)
        hidden = (1 - update) * candidate + update * hidden
        return hidden @ head, hidden

    return Policy(contract, nodes, weights, compute)


def recurrent_contract() -> PolicyContract:
    """The pendulum's, with a hidden state that does not begin at 0 and a history of three frames."""
    contract = pendulum_contract()
    terms = tuple(
        msgspec.structs.replace(term, history_length=3, history_stride=2) for term in contract.observation.terms
    )
    state = RecurrentState(input_name="h_in", output_name="h_out", shape=(1, 1, HIDDEN), initial_value=0.25)
    size = sum(len(term.scale) * term.history_length for term in terms)
    return msgspec.structs.replace(
        contract,
        observation=msgspec.structs.replace(contract.observation, terms=terms, layout="frame_major"),
        model=msgspec.structs.replace(contract.model, observation_size=size, recurrent=(state,)),
    )


def quadruped_contract() -> PolicyContract:
    """Twelve position-controlled joints, half of them mirrored; history, operator inputs, a limit on the tilt."""
    names = tuple(f"{leg}_{part}" for leg in ("fl", "fr", "rl", "rr") for part in ("hip", "thigh", "calf"))
    defaults = (0.1, 0.8, -1.5) * 4
    joints = tuple(
        Joint(
            name=name,
            axis_sign=-1 if name.startswith(("fr", "rr")) else 1,
            position_limits=(default - 0.9, default + 0.9),
            velocity_limit=30.0,
            effort_limit=25.0,
            default_position=default,
            command_mode="position",
            kp=25.0,
            kd=0.5,
        )
        for name, default in zip(names, defaults, strict=True)
    )
    # Policy-side default pose, in another order than the robot's joints.
    order = names[::-1]
    sides = {joint.name: joint.axis_sign * joint.default_position for joint in joints}
    offsets = tuple(sides[name] for name in order)
    commands = tuple(
        Command(name=name, unit="m/s", low=-1.0, high=1.0, initial=0.0) for name in ("vel_x", "vel_y", "yaw_rate")
    )
    terms = (
        _term("base_ang_vel", "base_ang_vel", 3, frame="body", scale=0.25, history=4),
        _term("gravity", "projected_gravity", 3, frame="body", history=4),
        _term("command", "command", 3, frame="policy", history=4),
        _term("joint_pos", "joint_pos", 12, frame="joint", joints=order, offset=offsets, history=4),
        _term("joint_vel", "joint_vel", 12, frame="joint", joints=order, scale=0.05, history=4),
        _term("last_action", "last_action", 12, frame="policy", joints=order, history=4),
    )
    pendulum = pendulum_contract()
    return PolicyContract(
        schema_version=SCHEMA_VERSION,
        identity=Identity(
            task="walk", robot="quadruped", toolkit_version="0.1.0", checkpoint_sha256="1" * 64, config_sha256="2" * 64
        ),
        timing=Timing(control_period_ns=20 * MS, physics_step_ns=5 * MS, decimation=4),
        joints=joints,
        observation=Observation(terms=terms, layout="frame_major", history_order="oldest_first", startup_fill="first"),
        action=Action(
            mode="absolute",
            joints=order,
            scale=(0.25,) * 12,
            offset=offsets,
            clip=(-10.0, 10.0),
            rate_limit=(40.0,) * 12,
        ),
        commands=commands,
        model=Model(
            observation_name="obs", observation_size=45 * 4, action_name="action", action_size=12, recurrent=()
        ),
        safety=Safety(
            stale_timeout_ns=60 * MS,
            on_stale="damp",
            on_non_finite="damp",
            on_position_limit="hold",
            position_margin=0.1,
            on_velocity_limit="damp",
            on_effort_limit="hold",
            effort_margin=5.0,
            max_tilt=0.8,
            on_tilt="damp",
            deadline_ladder=DeadlineLadder(hold_after=3, damp_after=6, stop_after=20),
            recover_after=4,
            fallback=Fallback(hold_kp=(20.0,) * 12, hold_kd=(1.0,) * 12, damp_kd=(2.0,) * 12),
        ),
        latency=pendulum.latency,
    )


def drifting(policy: Policy) -> Policy:
    """The same ONNX graph, but a numpy reference that forgets 1 % of its state at each step: wrong only over time."""

    def compute(observation: Array, state: Array) -> tuple[Array, Array]:
        action, state = policy.compute(observation, state)
        return action, 0.99 * state

    return replace(policy, compute=compute)


def _term(
    name: str,
    source: str,
    width: int,
    *,
    frame: str,
    joints: tuple[str, ...] = (),
    offset: tuple[float, ...] | None = None,
    scale: float = 1.0,
    history: int = 1,
) -> ObservationTerm:
    return ObservationTerm(
        name=name,
        source=source,
        joints=joints,
        function="identity",
        offset=offset or (0.0,) * width,
        scale=(scale,) * width,
        clip=(-100.0, 100.0),
        history_length=history,
        history_stride=1,
        quaternion=None,
        frame=frame,
    )


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _tensor(name: str, values: Array | float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def _float32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)
