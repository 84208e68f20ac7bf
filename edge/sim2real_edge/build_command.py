"""The commands that prepare a device: `sim2real edge build` and `sim2real edge targets`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from sim2real.command import Outcome
from sim2real.errors import EngineError, Sim2RealError
from sim2real_edge.targets import TARGETS, Target, target_named

if TYPE_CHECKING:
    from sim2real_edge.cuda import Gpu
    from sim2real_edge.tensorrt_layers import BuiltLayer

__all__ = ["EdgeBuildArgs", "TargetsArgs", "layer_table", "run_build", "run_targets"]


@dataclass(frozen=True)
class EdgeBuildArgs:
    """Build a bundle's TensorRT engine on the device that will run it, and prove it with the golden run.

    The engine is kept for `sim2real edge run --engine tensorrt`. It runs on no other kind of GPU and no other TensorRT,
    so nothing is built across architectures. Which precision each layer was built in is read back; a product that fell
    back is an error.
    """

    bundle: tyro.conf.Positional[Path]
    """The bundle: a folder or a zip file."""
    precision: str = "float32"
    """Which of the bundle's models to build."""
    cache: Path | None = None
    """Folder of engines; by default $SIM2REAL_ENGINES, else ~/.cache/sim2real/engines."""
    target: Literal["thor", "orin", "ada", "hopper", "blackwell"] | None = None
    """What this device must be; by default any that is known (sim2real edge targets)."""
    refittable: bool = False
    """Leave room for the weights of other policies of the same shape, which are then put in without a build."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys (.pub); a bundle signed with any other key is refused."""


def run_build(args: EdgeBuildArgs) -> Outcome:
    """Build; see `EdgeBuildArgs`. The verdict is pass if the engine reproduces the golden run.

    Raises:
        BundleError: The bundle does not pass.
        EngineError: This is not the target, no TensorRT or no GPU is here, or the model cannot be built as asked.
        InputError: The cache cannot be written, or a key cannot be read.
    """
    from sim2real_edge.commands import golden_table, read_trusted
    from sim2real_edge.engine import check_held
    from sim2real_edge.engine_cache import EngineCache, default_folder
    from sim2real_edge.golden import replay_golden
    from sim2real_edge.tensorrt_engine import TensorrtEngine

    bundle = read_trusted(args.bundle, args.trust)
    check_held(bundle, args.precision)
    gpu = _gpu(args.target)
    cache = EngineCache(default_folder() if args.cache is None else args.cache)
    engine = TensorrtEngine(bundle, args.precision, cache, refittable=args.refittable or None)
    report = replay_golden(engine, bundle)
    lines = [
        f"{args.bundle}: {args.precision} on {gpu.name} (SM {gpu.sm}), kept in {cache.folder}",
        *layer_table(engine.layers),
        *golden_table([report]),
    ]
    result = {"engine": engine.describe(), "layers": engine.layers, "golden": report, "cache": str(cache.folder)}
    return Outcome(passed=report.passed, result=result, summary="\n".join(lines))


def _gpu(name: str | None) -> Gpu:
    """Return this device's GPU, which is the kind that was asked for."""
    from sim2real_edge.tensorrt_engine import this_device

    wanted = "the device" if name is None else f"a {target_named(name).title} (SM {target_named(name).sm})"
    try:
        gpu, target = this_device()
    except Sim2RealError as error:
        raise EngineError(f"cannot build here: {error}; an engine is built where it runs: on {wanted}") from error
    if name not in (None, target.name):
        raise EngineError(
            f"--target {name}: expected {wanted}, got {gpu.name} (SM {gpu.sm}); an engine is built where it runs"
        )
    return gpu


def layer_table(layers: Sequence[BuiltLayer]) -> list[str]:
    """Return a line for each layer below a line of titles."""
    titles = f"{'inputs':<17}{'constants':<17}{'kind':<18}ONNX nodes"
    return [titles, *(_layer_row(layer) for layer in layers)]


def _layer_row(layer: BuiltLayer) -> str:
    types = (f"{'+'.join(dict.fromkeys(each)) or '-':<17}" for each in (layer.inputs, layer.constants))
    kind = f"{layer.kind} (product)" if layer.product else layer.kind
    return f"{''.join(types)}{kind:<18}{', '.join(layer.origins)}"


@dataclass(frozen=True)
class TargetsArgs:
    """List the GPUs that policies are built for: precisions, TensorRT and JetPack, and what is refused and why."""


def run_targets(args: TargetsArgs) -> Outcome:
    """List; see `TargetsArgs`."""
    del args
    lines = [line for target in TARGETS.values() for line in _describe(target)]
    return Outcome(passed=True, result={"targets": list(TARGETS.values())}, summary="\n".join(lines))


def _describe(target: Target) -> list[str]:
    releases = (
        release.tensorrt if release.jetpack is None else f"{release.tensorrt} (JetPack {release.jetpack})"
        for release in target.releases
    )
    return [
        f"{target.name}: {target.title}, SM {target.sm}",
        f"  takes     {', '.join(target.precisions)}",
        *(f"  refuses   {precision}: {reason}" for precision, reason in target.refused.items()),
        f"  TensorRT  {', '.join(releases)}",
        *(f"  note      {note}" for note in target.notes),
    ]
