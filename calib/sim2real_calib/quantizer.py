"""The way from a float32 policy to an accepted one of fewer bits, as a list of steps."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sim2real import __version__
from sim2real.acceptance import SCHEMA_VERSION, Acceptance, LayerError, Trial, read_acceptance
from sim2real.bundle import Bundle, read_bundle, write_bundle
from sim2real.errors import BundleError, InputError
from sim2real.extras import require
from sim2real.files import read_bytes
from sim2real.golden import Golden
from sim2real.members import ACCEPTANCE, CALIBRATION, SIGNATURE, load_members
from sim2real.randomization import RandomizationFile, read_randomization
from sim2real.signing import load_public_key, load_signing_key
from sim2real.tasks import Task, get_task
from sim2real.tasks.ranges import check_robot, with_own_ranges
from sim2real_calib.amax import Method, inputs_of, ranges_of
from sim2real_calib.calibration_set import (
    CalibrationSet,
    Coverage,
    check_set,
    coverage_of,
    decode_set,
    encode_set,
    record_set,
)
from sim2real_calib.closed_loop import Driven, compare, drive, verdict
from sim2real_calib.graph_lint import lint
from sim2real_calib.products import normalizer_of, products_of, runnable, weights_of
from sim2real_calib.quantize import Precision, quantized
from sim2real_calib.sensitivity import layer_errors, output_error, replayed, worst

if TYPE_CHECKING:
    from sim2real_calib.quantize_command import QuantizeArgs

__all__ = ["Quantized", "quantize"]

MIXED: Final = 0.8
"""Share of the squared errors whose products stay float32 in a mixed policy."""
_ALL: Final[dict[Precision, tuple[Precision, ...]]] = {
    "int8": ("int8", "int8", "float16"),
    "fp8": ("fp8", "fp8", "float16"),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
}
"""What is tried, one after the other; the second of a kind with its worst products in float32."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """What came of it."""

    chosen: Precision | None
    """None: nothing was accepted, and nothing written."""
    acceptance: Acceptance
    first: int
    """Index of the first trial of this call."""
    coverage: tuple[Coverage, ...]
    checked: tuple[str, ...]
    """What TensorRT said, a line each."""
    onnx_bytes: int
    float_bytes: int


@dataclass(frozen=True, eq=False)
class _Work:
    """What all trials share."""

    args: QuantizeArgs
    bundle: Bundle
    task: Task
    plants: RandomizationFile | None
    content: CalibrationSet
    inputs: Mapping[str, npt.NDArray[np.float32]]
    expected: npt.NDArray[np.float32]
    """Actions of the float32 policy on the calibration set."""

    @property
    def float32(self) -> bytes:
        return self.bundle.models["float32"]


def quantize(args: QuantizeArgs) -> Quantized:
    """Quantize, judge, check and write, as `args` say."""
    if args.check:
        # Said before minutes of episodes and not after them.
        require("tensorrt_rtx_bindings", "trt-check")
    key = None if args.signing_key is None else load_signing_key(args.signing_key)
    bundle = read_bundle(args.bundle, trusted_keys=[load_public_key(each) for each in args.trust] or None)
    if "float32" not in bundle.models:
        raise InputError(f"{args.bundle}: holds no float32 policy to quantize, only {', '.join(bundle.models)}")
    _check_weights(bundle)
    work = _prepare(args, bundle)
    coverage = coverage_of(work.content, bundle.contract, *normalizer_of(_parsed(work.float32)))
    calibration = encode_set(work.content)
    digest = hashlib.sha256(calibration).hexdigest()
    before = _earlier_trials(bundle, digest)
    trials: list[Trial] = []
    accepted: tuple[Precision, bytes] | None = None
    for precision, model, trial in _attempts(work):
        trials.append(trial)
        standing = _acceptance(digest, (*before, *trials)).of(trial.onnx_sha256)
        if standing is not None and standing.verdict != "refused":
            accepted = precision, model
            break
    acceptance = _acceptance(digest, (*before, *trials))
    checked: tuple[str, ...] = ()
    if accepted is not None:
        precision, model = accepted
        checked = _checked(model, precision, trials[-1].layers) if args.check else ()
        _check_unchanged(args, bundle)
        write_bundle(
            args.out,
            contract=bundle.contract,
            models={**bundle.models, precision: model},
            golden=bundle.golden,
            answers={**_others(bundle), precision: _answers(bundle, model)},
            created_by="sim2real quantize",
            extras={CALIBRATION: calibration, ACCEPTANCE: msgspec.json.encode(acceptance)},
            signing_key=key,
        )
    return Quantized(
        chosen=None if accepted is None else accepted[0],
        acceptance=acceptance,
        first=len(before),
        coverage=coverage,
        checked=checked,
        onnx_bytes=0 if accepted is None else len(accepted[1]),
        float_bytes=len(work.float32),
    )


def _prepare(args: QuantizeArgs, bundle: Bundle) -> _Work:
    """Find or record the calibration set, and see what goes into each product."""
    identity, names = bundle.contract.identity, bundle.contract.model
    task = get_task(identity.task, identity.robot, where=args.robot)
    given = None if args.randomization is None else read_randomization(args.randomization)
    plants = with_own_ranges(given, task)
    if plants is not None:
        check_robot(plants, task.robot, task.scene)
    float32 = bundle.models["float32"]
    if args.calibration is not None:
        content = _given_set(args.calibration)
    elif CALIBRATION in bundle.members:
        content = decode_set(bundle.members[CALIBRATION])
    else:
        with _bar(args.steps, "record") as progress:
            content = record_set(
                float32,
                bundle.contract,
                task,
                num_envs=args.envs,
                steps=args.steps,
                seed=args.seed,
                randomization=plants,
                progress=progress.update,
            )
    check_set(content, bundle.contract)
    products = products_of(_parsed(float32))
    with _bar(len(content.episode_start), "calibrate") as progress:
        inputs = inputs_of(float32, names, products, content, progress.update)
    return _Work(args, bundle, task, plants, content, inputs, replayed(float32, names, content))


def _given_set(path: Path) -> CalibrationSet:
    try:
        return decode_set(read_bytes(path, "calibration set"))
    except BundleError as error:
        raise InputError(
            f"{path}: {error}; a set of your own is written by sim2real_calib.calibration_set.encode_set"
        ) from error


def _attempts(work: _Work) -> Iterator[tuple[Precision, bytes, Trial]]:
    """Yield one policy after the other with what was found of it, the float32 policy's episodes being run once."""
    args, names = work.args, work.bundle.contract.model
    products = products_of(_parsed(work.float32))
    reference: Driven | None = None
    layers: tuple[LayerError, ...] = ()
    for index, precision in enumerate(_ALL[args.precision]):
        quantizes = precision in ("int8", "fp8")
        ranges: Mapping[str, float] = ranges_of(work.inputs, _method(args.method)) if quantizes else {}
        mixed = index > 0 and quantizes
        if not mixed:
            with _bar(len(products), f"{precision}, each product alone") as progress:
                layers = layer_errors(
                    work.float32,
                    names,
                    products,
                    precision,
                    ranges,
                    work.content,
                    expected=work.expected,
                    progress=progress.update,
                )
        keep = worst(layers, MIXED) if mixed else ()
        if len(keep) == len(products):
            continue
        told = tuple(msgspec.structs.replace(layer, kept=layer.product in keep) for layer in layers)
        model = quantized(work.float32, precision, ranges, keep=keep)
        if strange := lint(model):
            raise InputError(f"{args.bundle}: the {precision} graph is not sound: {strange[0]}; please report this")
        if args.acceptance and reference is None:
            reference = _driven(work, work.float32, "float32")
        yield precision, model, _trial(work, precision, model, told, reference)


def _trial(
    work: _Work, precision: Precision, model: bytes, layers: tuple[LayerError, ...], reference: Driven | None
) -> Trial:
    """Judge one policy; `reference`: the float32 policy's episodes; None: nobody judges in closed loop."""
    found = None
    passed, reason = True, "no episode was run (--no-acceptance)"
    if reference is not None:
        found = compare(reference, _driven(work, model, precision))
        passed, reason = verdict(found, work.args.max_loss)
    return Trial(
        precision=precision,
        verdict="not judged" if found is None else "accepted" if passed else "refused",
        reason=reason,
        onnx_sha256=hashlib.sha256(model).hexdigest(),
        method=work.args.method,
        layers=layers,
        output_error=output_error(replayed(model, work.bundle.contract.model, work.content), work.expected),
        max_loss=work.args.max_loss,
        plants=_plants(work.args, work.plants),
        seed=work.args.seed,
        episodes=0 if found is None else work.args.episodes,
        success=found and found.success,
        falls=found and found.falls,
        returns=found and found.returns,
        jerk=found and found.jerk,
        terms=found.terms if found else {},
    )


def _driven(work: _Work, model: bytes, what: str) -> Driven:
    task, args = work.task, work.args
    steps = round(task.episode_length / (work.bundle.contract.timing.control_period_ns * 1e-9))
    with _bar(steps, f"{what}, {args.episodes} episodes") as progress:
        return drive(
            model,
            work.bundle.contract.model,
            task,
            starts=args.episodes,
            # What was recorded for calibration is not what it is judged by.
            seed=args.seed + 1,
            randomization=work.plants,
            progress=progress.update,
        )


def _answers(bundle: Bundle, model: bytes) -> Golden:
    """Return the golden run as the quantized policy answers it, on the robot's own engine."""
    from sim2real_edge.engine import load_engine
    from sim2real_edge.golden import run_golden

    with tempfile.TemporaryDirectory() as folder:
        # Under the name of a precision that every engine runs: what it is made of is the graph's own matter.
        alone = write_bundle(
            Path(folder) / "policy.s2r",
            contract=bundle.contract,
            models={"float32": runnable(model)},
            golden=bundle.golden,
            created_by="sim2real quantize",
        )
        return run_golden(load_engine("onnxruntime-cpu", alone), alone)


def _others(bundle: Bundle) -> dict[str, Golden]:
    """Return what the bundle's other quantized policies answered."""
    return {precision: golden for precision, golden in bundle.goldens.items() if precision != "float32"}


def _acceptance(calibration_sha256: str, trials: tuple[Trial, ...]) -> Acceptance:
    return Acceptance(
        schema_version=SCHEMA_VERSION,
        toolkit_version=__version__,
        calibration_sha256=calibration_sha256,
        trials=trials,
    )


def _check_unchanged(args: QuantizeArgs, bundle: Bundle) -> None:
    """Check that nobody has written the bundle meanwhile that this one is to replace."""
    if (
        args.out.resolve() == args.bundle.resolve()
        and load_members(args.bundle)[SIGNATURE] != bundle.members[SIGNATURE]
    ):
        raise InputError(
            f"{args.bundle}: somebody else has changed it meanwhile, and would lose what they wrote; run this again"
        )


def _check_weights(bundle: Bundle) -> None:
    """Check that the policy's numbers are numbers: ranges of what comes of others say nothing of the calibration."""
    for name, values in weights_of(_parsed(bundle.models["float32"])).items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{bundle.path}: {name} holds what is no number; the policy has diverged: train it anew")


def _earlier_trials(bundle: Bundle, calibration_sha256: str) -> tuple[Trial, ...]:
    """Return what was judged of the bundle's other policies, which stay in it."""
    if ACCEPTANCE not in bundle.members:
        return ()
    earlier = read_acceptance(bundle.members[ACCEPTANCE])
    if earlier.calibration_sha256 != calibration_sha256:
        raise InputError(
            f"{bundle.path}: its quantized policies were calibrated with another set; leave out --calibration, or "
            "begin with a bundle of the float32 policy alone"
        )
    return earlier.trials


def _checked(model: bytes, precision: Precision, layers: tuple[LayerError, ...]) -> tuple[str, ...]:
    from sim2real_calib.trt_check import check_graph

    return check_graph(model, precision, expected=sum(not layer.kept for layer in layers))


def _parsed(onnx_file: bytes) -> Any:
    import onnx

    return onnx.load_model_from_string(onnx_file)


def _plants(args: QuantizeArgs, plants: RandomizationFile | None) -> str:
    if plants is None:
        return "the nominal plant"
    source = "the task's own ranges" if args.randomization is None else str(args.randomization)
    return f"plants drawn from {len(plants.parameters)} ranges ({source})"


def _method(name: str) -> Method:
    from sim2real_calib.amax import METHODS

    return next(method for method in METHODS if method == name)


def _bar(total: int, what: str) -> tqdm[NoReturn]:
    return tqdm(total=total, desc=what, unit="step", dynamic_ncols=True, leave=False)
