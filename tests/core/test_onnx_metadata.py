"""The small reader of ONNX metadata agrees with onnx itself."""

from __future__ import annotations

import onnx
import onnx.helper
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.contract import decode_contract, encode_contract
from sim2real.errors import BundleError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY, read_metadata
from tests.core.strategies import model_without_graph, pendulum_contract


def _model(metadata: dict[str, str]) -> bytes:
    shape = ("batch", 3)
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("obs", "action")]
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (300,), [0.5] * 300)
    nodes = [onnx.helper.make_node("Tanh", ["obs"], ["action"])]
    graph = onnx.helper.make_graph(nodes, "policy", value[:1], value[1:], [weights])
    model = onnx.helper.make_model(graph, producer_name="test", doc_string="sim2real.contract")
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=50)
@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_reads_what_onnx_wrote(metadata: dict[str, str]) -> None:
    assert read_metadata(_model(metadata)) == metadata


def test_model_alone_carries_its_whole_contract() -> None:
    contract = pendulum_contract()
    model = _model({CONTRACT_METADATA_KEY: encode_contract(contract).decode()})
    assert decode_contract(read_metadata(model)[CONTRACT_METADATA_KEY].encode()) == contract
    bare = onnx.ModelProto.FromString(model_without_graph(encode_contract(contract)))
    assert bare.metadata_props[0].value == encode_contract(contract).decode()


@given(st.binary(max_size=60), st.booleans())
def test_arbitrary_bytes_never_end_in_another_error(noise: bytes, entry: bool) -> None:
    content = b"\x72" + bytes([len(noise)]) + noise if entry else noise
    try:
        metadata = read_metadata(content)
    except BundleError:
        return
    assert all(isinstance(text, str) for pair in metadata.items() for text in pair)


def test_cut_off_model_is_refused() -> None:
    model = _model({"a": "b" * 200})
    with pytest.raises(BundleError, match="expected an ONNX file, got something else or a truncated one"):
        read_metadata(model[:-1])


def test_key_that_is_there_twice_is_refused() -> None:
    model = model_without_graph(b"one", "key") + model_without_graph(b"two", "key")
    with pytest.raises(BundleError, match="expected metadata keys that differ, got 'key' twice"):
        read_metadata(model)
