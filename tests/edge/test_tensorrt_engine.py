"""The engine on TensorRT, up to the first call of the device: TensorRT for RTX parses and builds on a CPU. About 15 s.

What needs a GPU says so here; where there are one and TensorRT, the golden run is replayed on it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sim2real.bundle import Bundle
from sim2real.cli import main
from sim2real.errors import EngineError
from sim2real_calib.quantize import Precision, quantized
from sim2real_edge.build_command import layer_table
from sim2real_edge.engine import available_engines, load_engine
from sim2real_edge.engine_cache import EngineCache
from sim2real_edge.golden import replay_golden
from sim2real_edge.onnx_engine import GpuEngine
from sim2real_edge.tensorrt_build import build, configure, import_tensorrt, log_of, parse
from sim2real_edge.tensorrt_engine import choose_key, kept_engine, key_of, open_engine, this_device
from sim2real_edge.tensorrt_layers import BuiltLayer, Product, asked_products, built_layers, check_products
from tests.calib.policies import KINDS, exported
from tests.edge import policies

trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="needs the 'trt-check' extra")
pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")
cuda: Any = importlib.import_module("sim2real_edge.cuda")

# Of TensorRT for RTX alone, which keeps no timings.
pytestmark = pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX")

THOR = cuda.Gpu(name="NVIDIA Thor", sm="11.0")


def has_gpu() -> bool:
    try:
        cuda.find_gpu()
    except EngineError:
        return False
    return True


WITHOUT_GPU = pytest.mark.skipif(has_gpu(), reason="there is a GPU")
WITH_GPU = pytest.mark.skipif(
    not has_gpu() or importlib.util.find_spec("tensorrt") is None, reason="needs an NVIDIA GPU and TensorRT"
)


def bundle_of(pendulum: Bundle, kind: str, precision: str, keep: tuple[str, ...] = ()) -> Bundle:
    """A bundle whose only model is an exported policy, quantised."""
    policy = exported(kind)
    known: dict[str, Precision] = {"int8": "int8", "fp8": "fp8", "float16": "float16", "bfloat16": "bfloat16"}
    ranges = {each.name: 4.0 for each in policy.products}
    model = policy.onnx if precision == "float32" else quantized(policy.onnx, known[precision], ranges, keep=keep)
    return replace(pendulum, contract=policy.contract, models={precision: model})


def altered(bundle: Bundle, precision: str, change: Callable[[onnx.ModelProto], None]) -> Bundle:
    model = onnx.load_model_from_string(bundle.models[precision])
    change(model)
    return replace(bundle, models={precision: model.SerializeToString()})


def built_of(bundle: Bundle, precision: str) -> tuple[tuple[Product, ...], tuple[BuiltLayer, ...]]:
    """What is asked for and what TensorRT for RTX builds."""
    parsed = parse(trt, bundle, precision)
    build(trt, parsed, configure(trt, parsed, bundle, refittable=False))
    return asked_products(trt, parsed.network), built_layers(inspected())


def inspected() -> str:
    """The table of layers that the builder logged, in the inspector's form, which has the same words."""
    table = next(line for _, line in reversed(log_of(trt)) if line.startswith("Layers:"))
    rows = [row for row in table.split("I/O Tensors:")[0].splitlines() if row.startswith("Name: ")]
    return msgspec.json.encode({"Layers": [row_of(row) for row in rows]}).decode()


def row_of(row: str) -> dict[str, object]:
    def told(key: str) -> str:
        found = re.search(rf"(?:^|, ){key}: (.*?)(?=, \w+: |$)", row)
        return "" if found is None else found[1]

    def tensors(key: str) -> list[dict[str, str]]:
        found = re.search(rf"{key}: \[(.*?)\](?=, (?:Constants|Outputs|TacticName))", row)
        return [{"Format/Datatype": kind} for kind in re.findall(r"Datatype: (\w+)", found[1] if found else "")]

    return {
        "Name": told("Name"),
        "LayerType": told("LayerType"),
        "Inputs": tensors("Inputs"),
        "Constants": tensors("Constants"),
        "TacticName": told("TacticName"),
        "Metadata": told("Metadata"),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "fp8"])
def test_products_are_asked_for_as_the_file_says(pendulum: Bundle, kind: str, precision: str) -> None:
    parsed = parse(trt, bundle_of(pendulum, kind, precision), precision)
    asked = asked_products(trt, parsed.network)
    assert [product.precision for product in asked] == [precision] * len(exported(kind).products)


@pytest.mark.parametrize(("kind", "precision"), [("mlp", "int8"), ("mlp", "fp8"), ("cnn", "int8"), ("gru", "fp8")])
def test_products_that_were_built_as_asked_pass(pendulum: Bundle, kind: str, precision: str) -> None:
    asked, built = built_of(bundle_of(pendulum, kind, precision), precision)
    check_products("policy", precision, asked, built)
    products = [layer for layer in built if layer.product]
    assert [layer.inputs for layer in products] == [(precision,)] * len(asked)


def test_the_table_of_layers_shows_in_what_they_compute(pendulum: Bundle) -> None:
    _, built = built_of(bundle_of(pendulum, "mlp", "float16"), "float16")
    titles, *rows = layer_table(built)
    assert re.split(r"  +", titles) == ["inputs", "constants", "kind", "ONNX nodes"]
    # All in one kernel, or two: the weights alone tell.
    assert all(re.match(r"float32 +float16(\+float32)? +kgen +node_of_", row) for row in rows)


def test_what_falls_back_in_silence_is_named(pendulum: Bundle) -> None:
    # Case 12. Scales along a product's inputs instead of its outputs: the builder computes in float, and says nothing.
    def along_inputs(model: onnx.ModelProto) -> None:
        constants = {each.name: each for each in model.graph.initializer}
        columns = numpy_helper.to_array(constants["gemm_1_weight_codes"]).shape[1]
        scale, zero = np.full(columns, 0.01, np.float32), np.zeros(columns, np.int8)
        constants["gemm_1_weight_scale"].CopyFrom(numpy_helper.from_array(scale, "gemm_1_weight_scale"))
        constants["gemm_1_weight_zero"].CopyFrom(numpy_helper.from_array(zero, "gemm_1_weight_zero"))
        node = next(each for each in model.graph.node if each.output[0] == "gemm_1_weight")
        node.attribute[0].i = 1

    asked, built = built_of(altered(bundle_of(pendulum, "mlp", "int8"), "int8", along_inputs), "int8")
    assert len([product for product in asked if product.precision == "int8"]) == 3
    lost = asked[1].layer
    with pytest.raises(EngineError, match=rf"expected 3 products in eight bits, got 2: .* {lost} \(asked int8, built "):
        check_products("policy", "int8", asked, built)


def test_products_that_shall_stay_float32_are_not_asked_for_in_eight_bits(pendulum: Bundle) -> None:
    asked, built = built_of(bundle_of(pendulum, "mlp", "int8", keep=("gemm_0",)), "int8")
    assert [product.precision for product in asked] == ["float32", "int8", "int8"]
    check_products("policy", "int8", asked, built)


def test_a_model_that_is_quantised_in_name_alone_is_refused(pendulum: Bundle) -> None:
    bundle = bundle_of(pendulum, "mlp", "float32")
    asked, built = built_of(replace(bundle, models={"int8": bundle.models["float32"]}), "int8")
    with pytest.raises(EngineError, match="expected products in int8, got none in the graph"):
        check_products("policy", "int8", asked, built)


@pytest.mark.parametrize(
    ("told", "precision"),
    [
        ("Int8", "int8"),
        ("Thirty-two wide channel vectorized row major Int8 format.", "int8"),
        ("FP8", "fp8"),
        ("Row major linear FP8 format (E4M3)", "fp8"),
        ("BFloat16", "bfloat16"),
        ("Row major linear BF16 format", "bfloat16"),
        ("Half", "float16"),
        ("Channel major FP16 format where channel % 4 == 0", "float16"),
        ("Row major linear FP32", "float32"),
        ("Float", "float32"),
        ("Int32", "Int32"),
    ],
)
@pytest.mark.parametrize("key", ["Format/Datatype", "Datatype"])
def test_the_inspectors_words_for_datatypes_are_understood(told: str, precision: str, key: str) -> None:
    row = {"Name": "a + b", "LayerType": "CaskGemmMatrixMultiply", "Inputs": [{"Name": "x", key: told}]}
    (layer,) = built_layers(msgspec.json.encode({"Layers": [row]}).decode())
    assert (layer.product, layer.inputs, layer.origins) == (True, (precision,), ("a", "b"))


@pytest.mark.parametrize(
    ("kind", "tactic", "product"),
    [
        ("gemm", "sm80_xmma_gemm_i8", True),
        ("CaskConvolution", "", True),
        ("fusion", "sm80_xmma_gemm_i8f32_by_fusion_tactic", True),
        ("fusion", "pointwise", False),
        ("kgen", "__myl_MulSumAdd_gemm", False),
    ],
)
def test_a_product_is_told_from_what_it_was_fused_with(kind: str, tactic: str, product: bool) -> None:
    rows = [{"Name": "a", "LayerType": kind, "TacticName": tactic, "Metadata": "[ONNX Layer: n][ONNX Layer: m]"}]
    (layer,) = built_layers(msgspec.json.encode({"Layers": rows}).decode())
    assert (layer.product, layer.origins) == (product, ("n", "m"))


@pytest.mark.parametrize("information", ['{"Layers": []}', '{"Layers": ["only a name"]}', "{}"])
def test_an_engine_that_does_not_tell_of_its_layers_is_refused(information: str) -> None:
    with pytest.raises(EngineError, match="does not say what its layers are"):
        built_layers(information)


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def zero_scale(model: onnx.ModelProto) -> None:
    constant = next(each for each in model.graph.initializer if each.name == "gemm_0_input_scale")
    constant.CopyFrom(numpy_helper.from_array(np.zeros((), np.float32), constant.name))


def zero_point(model: onnx.ModelProto) -> None:
    constant = next(each for each in model.graph.initializer if each.name == "gemm_0_input_zero")
    constant.CopyFrom(numpy_helper.from_array(np.ones((), np.int8), constant.name))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (unknown_operator, "Plugin not found"),
        (zero_scale, "Scale coefficients must all be positive"),
        (zero_point, "[Zz]ero.point"),
    ],
)
def test_what_the_parser_refuses_is_said_in_its_words_in_one_line(
    pendulum: Bundle, change: Callable[[onnx.ModelProto], None], told: str
) -> None:
    # Cases 9 and 10.
    bundle = altered(bundle_of(pendulum, "mlp", "int8"), "int8", change)
    with pytest.raises(EngineError, match=rf"policy\.int8\.onnx: TensorRT .* refuses it: .*{told}") as caught:
        parse(trt, bundle, "int8")
    assert "\n" not in str(caught.value)


def test_a_model_with_another_contract_in_it_is_refused(pendulum: Bundle) -> None:
    # Case 4.
    joint = msgspec.structs.replace(pendulum.contract.joints[0], effort_limit=2.0)
    other = msgspec.structs.replace(pendulum.contract, joints=(joint,))
    model = policies.mlp(pendulum.contract).model(other)
    with pytest.raises(EngineError, match="expected the bundle's contract in the model's metadata, got another one"):
        parse(trt, replace(pendulum, models={"float32": model}), "float32")


def widened(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2


def in_float16(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Cast", ["obs"], ["obs32"], to=TensorProto.FLOAT))
    for node in list(model.graph.node)[1:]:
        node.input[:] = ["obs32" if name == "obs" else name for name in node.input]
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (widened, r"input 'obs': expected FLOAT of shape \[1, 4\], got FLOAT of shape \[2, 4\]"),
        (in_float16, r"input 'obs': expected FLOAT of shape \[1, 4\], got HALF of shape \[1, 4\]"),
    ],
)
def test_a_tensor_that_differs_from_the_contract_is_named(
    pendulum: Bundle, change: Callable[[onnx.ModelProto], None], told: str
) -> None:
    # Case 8.
    with pytest.raises(EngineError, match=told):
        parse(trt, altered(pendulum, "float32", change), "float32")


def test_a_free_batch_is_built_for_one(recurrent: Bundle) -> None:
    def free(model: onnx.ModelProto) -> None:
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"

    bundle = altered(recurrent, "float32", free)
    parsed = parse(trt, bundle, "float32")
    assert [tuple(parsed.network.get_input(index).shape)[:1] for index in range(2)] == [(-1,), (1,)]
    build(trt, parsed, configure(trt, parsed, bundle, refittable=False))
    table = next(line for _, line in reversed(log_of(trt)) if line.startswith("Layers:"))
    size = bundle.contract.model.observation_size
    assert f"MinShape: [1,{size}], OptShape: [1,{size}], MaxShape: [1,{size}]" in table


def test_float32_stays_float32_and_every_layer_is_told(pendulum: Bundle) -> None:
    parsed = parse(trt, pendulum, "float32")
    config: Any = configure(trt, parsed, pendulum, refittable=False)
    assert not config.get_flag(trt.BuilderFlag.TF32)
    assert not config.get_flag(trt.BuilderFlag.REFIT)
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    network: Any = parsed.network
    assert network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


@WITHOUT_GPU
def test_what_the_builder_cannot_do_here_is_said_in_its_words(pendulum: Bundle) -> None:
    # Room for new weights is measured on the GPU.
    parsed = parse(trt, pendulum, "float32")
    config = configure(trt, parsed, pendulum, refittable=True)
    with pytest.raises(EngineError, match=r"policy\.float32\.onnx: TensorRT .* cannot build it: .*CUDA") as caught:
        build(trt, parsed, config)
    assert "\n" not in str(caught.value)


def test_an_engine_is_built_once_and_then_read(pendulum: Bundle, tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines")
    key = key_of(trt, THOR, None, pendulum.models["float32"], refittable=False)
    built = kept_engine(trt, pendulum, "float32", cache, key)
    assert sorted(path.suffix for path in cache.folder.iterdir()) == [".engine", ".timing"]
    log_of(trt).clear()
    assert kept_engine(trt, pendulum, "float32", cache, key) == built
    assert not log_of(trt), "TensorRT was asked again"


def test_a_retrained_policy_has_an_engine_of_its_own(pendulum: Bundle, tmp_path: Path) -> None:
    # Case 13.
    cache = EngineCache(tmp_path / "engines")
    again = replace(pendulum, models={"float32": policies.mlp(pendulum.contract, seed=1).model()})
    keys = [key_of(trt, THOR, None, each.models["float32"], refittable=False) for each in (pendulum, again)]
    kept = [kept_engine(trt, each, "float32", cache, key) for each, key in zip((pendulum, again), keys, strict=True)]
    assert keys[0].digest != keys[1].digest
    assert kept[0].plan != kept[1].plan
    assert kept[0].model_sha256 != kept[1].model_sha256


def test_a_refittable_engine_is_for_all_policies_of_its_structure(pendulum: Bundle) -> None:
    models = [pendulum.models["float32"], policies.mlp(pendulum.contract, seed=1).model()]
    keys = [key_of(trt, THOR, None, model, refittable=True) for model in models]
    assert keys[0] == keys[1]
    wider = policies.mlp(pendulum.contract, hidden=16).model()
    assert key_of(trt, THOR, None, wider, refittable=True) != keys[0]


def test_an_engine_that_takes_new_weights_is_used_where_there_is_none_for_this_policy(
    pendulum: Bundle, tmp_path: Path
) -> None:
    cache, model = EngineCache(tmp_path / "engines"), pendulum.models["float32"]
    plain, refittable = (key_of(trt, THOR, None, model, refittable=each) for each in (False, True))
    assert choose_key(trt, THOR, None, model, cache, refittable=None) == plain
    assert choose_key(trt, THOR, None, model, cache, refittable=True) == refittable
    cache.write(refittable.file, refittable, b"plan")
    assert choose_key(trt, THOR, None, model, cache, refittable=None) == refittable
    cache.write(plain.file, plain, b"plan")
    assert choose_key(trt, THOR, None, model, cache, refittable=None) == plain


def test_a_damaged_engine_never_reaches_tensorrt(pendulum: Bundle, tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines")
    key = key_of(trt, THOR, None, pendulum.models["float32"], refittable=False)
    kept_engine(trt, pendulum, "float32", cache, key)
    path = cache.path(key.file)
    path.write_bytes(path.read_bytes()[:-1])
    log_of(trt).clear()
    with pytest.raises(EngineError, match=rf"{path}: cut off or altered"):
        kept_engine(trt, pendulum, "float32", cache, key)
    assert not log_of(trt)


@WITHOUT_GPU
def test_an_engine_is_not_opened_without_a_gpu(pendulum: Bundle, tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines")
    key = key_of(trt, THOR, None, pendulum.models["float32"], refittable=False)
    kept = kept_engine(trt, pendulum, "float32", cache, key)
    with pytest.raises(EngineError, match=r"plan: TensorRT .* does not take it: .*CUDA") as caught:
        open_engine(trt, pendulum, "float32", kept, Path("plan"))
    assert "\n" not in str(caught.value)


@WITHOUT_GPU
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(EngineError, match=r"no NVIDIA GPU on this machine|the GPU's driver is too old"):
        this_device()
    with pytest.raises(EngineError, match=r"CUDA: cudaHostAlloc: .*; check the GPU and its driver"):
        cuda.pinned((1, 4))
    with pytest.raises(EngineError, match="CUDA: cudaMalloc: "):
        cuda.DeviceArray((1, 4))
    with pytest.raises(EngineError, match="CUDA: cudaStreamCreateWithFlags: "):
        cuda.Stream()


@WITHOUT_GPU
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "an engine is built where it runs: on the device"),
        (("--target", "thor"), r"an engine is built where it runs: on a Jetson Thor \(SM 11\.0\)"),
    ],
)
def test_a_build_without_a_gpu_is_one_line(
    pendulum: Bundle, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    assert main(["edge", "build", str(pendulum.path), "--cache", str(tmp_path / "engines"), *words]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"error: cannot build here: no NVIDIA GPU on this machine.*{told}\n", error)
    assert not (tmp_path / "engines").exists()


def test_a_precision_that_the_bundle_lacks_is_refused_before_any_gpu(
    pendulum: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edge", "build", str(pendulum.path), "--precision", "int8"]) == 2
    assert "holds no int8 model; allowed: float32" in capsys.readouterr().err


def test_what_is_missing_for_tensorrt_is_said(pendulum: Bundle) -> None:
    reason = available_engines()["tensorrt"]
    if reason is None:
        pytest.skip("TensorRT can be used here")
    if importlib.util.find_spec("tensorrt") is None:
        assert "needs the 'edge-trt' extra" in reason
        assert "on a Jetson it comes with JetPack" in reason
        with pytest.raises(EngineError, match=r"tensorrt: cannot be imported.*python3-libnvinfer"):
            import_tensorrt()
    with pytest.raises(EngineError, match=r"engine 'tensorrt': "):
        load_engine("tensorrt", pendulum)


def test_every_name_of_the_stubs_is_one_of_the_bindings() -> None:
    # The two releases' own bindings need a library that is not here; TensorRT for RTX has the same interface.
    tree = ast.parse((Path(__file__).parents[2] / "typings/tensorrt/__init__.pyi").read_text())
    for item in tree.body:
        if isinstance(item, ast.ClassDef):
            assert not missing_in(item, getattr(trt, item.name)), item.name
    runtime: Any = importlib.import_module("cuda.bindings.runtime")
    tree = ast.parse((Path(__file__).parents[2] / "typings/cuda/bindings/runtime.pyi").read_text())
    for item in tree.body:
        if isinstance(item, ast.ClassDef):
            assert not missing_in(item, getattr(runtime, item.name)), item.name
        elif isinstance(item, ast.FunctionDef):
            assert callable(getattr(runtime, item.name))


def missing_in(item: ast.ClassDef, found: Any) -> list[str]:
    names = [each.name for each in item.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    names += [
        each.target.id for each in item.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    names += [
        each.targets[0].id
        for each in item.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    ]
    return [name for name in names if name != "__buffer__" and not hasattr(found, name)]


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "TensorrtExecutionProvider"])
def test_a_provider_that_cannot_run_is_an_error_and_no_slow_success(pendulum: Bundle, provider: str) -> None:
    import onnxruntime as ort

    if provider in ort.get_available_providers():
        pytest.skip(f"onnxruntime has {provider}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(
            EngineError, match=r"fallback to CPU EP has been explicitly disabled.*check the GPU's driver"
        ):
            GpuEngine(pendulum, "float32", "onnxruntime-gpu", (provider, {}))


@WITH_GPU
@pytest.mark.parametrize("name", ["pendulum", "recurrent", "quadruped"])
@pytest.mark.parametrize("refittable", [False, True])
def test_the_golden_run_is_reproduced_on_the_gpu(
    name: str, refittable: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from sim2real_edge.tensorrt_engine import TensorrtEngine

    bundle: Bundle = request.getfixturevalue(name)
    cache = EngineCache(tmp_path / "engines")
    for _ in ("built", "read"):
        assert replay_golden(TensorrtEngine(bundle, "float32", cache, refittable=refittable), bundle).passed


@WITH_GPU
def test_a_refitted_engine_computes_the_new_policy(pendulum: Bundle, tmp_path: Path) -> None:
    from sim2real_edge.tensorrt_engine import TensorrtEngine

    cache = EngineCache(tmp_path / "engines")
    TensorrtEngine(pendulum, "float32", cache, refittable=True)
    other = policies.mlp(pendulum.contract, seed=1).write(tmp_path / "other.s2r")
    assert replay_golden(TensorrtEngine(other, "float32", cache, refittable=True), other).passed
    assert len(list(cache.folder.glob("*.engine"))) == 1
