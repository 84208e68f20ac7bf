"""From a policy that others trained to a bundle of ours: network, contract, golden run, proof; all of it or nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sim2real import __version__
from sim2real.bundle import write_bundle
from sim2real.contract import SCHEMA_VERSION, Model, PolicyContract, contract_hash, decode_contract
from sim2real.errors import ContractError, InputError
from sim2real.golden import Golden
from sim2real.tasks import Task, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.episodes import BatchPolicy
from sim2real_train.golden_run import GOLDEN_STEPS, record_golden
from sim2real_train.importers.checkpoints import Choices, Found, read_checkpoint_of
from sim2real_train.importers.facts import (
    Document,
    Facts,
    check_shape,
    complete,
    in_order_of,
    infer_histories,
    unsaid_fields,
)
from sim2real_train.importers.measurements import record_wandering
from sim2real_train.importers.onnx_facts import facts_of_metadata
from sim2real_train.importers.onnx_file import ForeignOnnx, OnnxSource, dressed, read_onnx
from sim2real_train.importers.options import given_document
from sim2real_train.importers.perceptron import SourcePolicy, actor_from
from sim2real_train.importers.plain import inner
from sim2real_train.importers.sb3 import is_sb3, normalizer_from_file, read_sb3
from sim2real_train.importers.torch_files import is_zip, load_weights, open_zip, read_source
from sim2real_train.importers.unitree import read_deploy_yaml
from sim2real_train.importers.yaml_text import read_text, read_yaml
from sim2real_train.onnx_graph import actor_to_onnx
from sim2real_train.parity import Parity, prove

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from sim2real_train.import_command import ImportArgs

__all__ = ["ImportResult", "import_policy"]


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real import` reports."""

    bundle: Path | None
    """None: parity failed, and nothing was written."""
    source: Path
    told_by: str
    """What the source is."""
    checkpoint_sha256: str
    """Of the source file."""
    contract_sha256: str
    observation_size: int
    action_size: int
    measurements: str
    """Where those of the golden run came from."""
    notes: tuple[str, ...]
    """What is lossy, what was ignored, what the source does not have."""
    parity: tuple[Parity, ...]

    @property
    def passed(self) -> bool:
        """Whether every comparison with the source is within its tolerance."""
        return all(each.passed for each in self.parity)


class _Network(Protocol):
    """A network in any form: its sizes, what it computes, and how it becomes an ONNX file."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Width of observation and action."""
        ...

    @property
    def model(self) -> Model:
        """What a contract says of it."""
        ...

    def policy(self) -> BatchPolicy:
        """Return it as its own side computes it."""
        ...

    def onnx(self, contract: PolicyContract) -> bytes:
        """Return the ONNX file with this contract."""
        ...


@dataclass(frozen=True)
class _Rebuilt:
    """A perceptron, which becomes an actor of ours."""

    found: Found

    @property
    def sizes(self) -> tuple[int, int]:
        return self.found.observation_size, self.found.action_size

    @property
    def model(self) -> Model:
        observation_size, action_size = self.sizes
        return Model(
            observation_name="obs",
            observation_size=observation_size,
            action_name="action",
            action_size=action_size,
            recurrent=(),
        )

    def policy(self) -> BatchPolicy:
        assert self.found.network is not None
        return SourcePolicy(self.found.network)

    def onnx(self, contract: PolicyContract) -> bytes:
        assert self.found.network is not None
        return actor_to_onnx(actor_from(self.found.network), contract)


@dataclass(frozen=True)
class _Kept:
    """A foreign ONNX file, whose graph stays."""

    source: ForeignOnnx
    name: str

    @property
    def sizes(self) -> tuple[int, int]:
        return self.source.observation_size, self.source.action_size

    @property
    def model(self) -> Model:
        return self.source.model

    def policy(self) -> BatchPolicy:
        return OnnxSource(self.source, self.name)

    def onnx(self, contract: PolicyContract) -> bytes:
        return dressed(self.source, contract)


def import_policy(args: ImportArgs, *, signing_key: Ed25519PrivateKey | None = None) -> ImportResult:
    """Write the bundle of a foreign policy to `args.out`, if it computes what its source does.

    Raises:
        InputError: The source cannot be read or does not fit, contradicts what was given, or something is unsaid: the
            message names every field that is.
    """
    if args.source.is_dir():
        raise InputError(
            f"{args.source}: expected a file, got a folder; of a run of sim2real itself, sim2real export makes a bundle"
        )
    content = read_source(args.source)
    network, facts, asks, notes = _read(args, content)
    task = None if args.task is None else get_task(args.task)
    document, told = _document(args, facts, task)
    contract = _contract(args, content, network, facts, document, asks)
    policy = network.policy()
    onnx = network.onnx(contract)
    golden, measurements = _golden(policy, task, contract, args.seed)
    parity = prove(policy, contract, onnx, golden, measurements=measurements)
    result = ImportResult(
        bundle=None,
        source=args.source,
        told_by=facts.told_by,
        checkpoint_sha256=contract.identity.checkpoint_sha256,
        contract_sha256=contract_hash(contract).hex(),
        observation_size=contract.model.observation_size,
        action_size=contract.model.action_size,
        measurements=measurements,
        notes=(*notes, *told),
        parity=parity,
    )
    if not result.passed:
        return result
    write_bundle(
        args.out,
        contract=contract,
        models={"float32": onnx},
        golden=golden,
        created_by="sim2real import",
        signing_key=signing_key,
    )
    return msgspec.structs.replace(result, bundle=args.out)


def _read(args: ImportArgs, content: bytes) -> tuple[_Network, Facts, tuple[str, ...], tuple[str, ...]]:
    """Return the network, what its source says of a contract, what is open of the network, and notes."""
    name = str(args.source)
    choices = _choices(args)
    if args.source.suffix == ".onnx":
        if choices != Choices():
            raise InputError(
                "--activation, --output-activation, --normalizer: an ONNX file says these itself; leave them out"
            )
        source = read_onnx(content, name)
        facts = facts_of_metadata(source.metadata)
        if args.deploy is not None:
            facts = read_deploy_yaml(read_text(args.deploy, "--deploy"), args.joint_names)
        elif args.joint_names:
            raise InputError("--joint-names: is for --deploy, whose file names no joints; leave it out")
        return _Kept(source, name), facts, (), ()
    if args.deploy is not None or args.joint_names:
        raise InputError(
            "--deploy, --joint-names: are for an ONNX file, as Unitree's runtime reads it; export the policy to ONNX"
        )
    if is_zip(content):
        with open_zip(content, name) as archive:
            members = archive.namelist()
        if is_sb3(members):
            found = read_sb3(content, choices, name)
            return _Rebuilt(found), Facts(found.told_by, {}), found.asks, found.notes
    found = read_checkpoint_of(load_weights(content, name), choices, name)
    return _Rebuilt(found), Facts(found.told_by, {}), found.asks, found.notes


def _choices(args: ImportArgs) -> Choices:
    if args.normalizer in (None, "none", "checkpoint"):
        normalizer: Any = args.normalizer
    else:
        normalizer = normalizer_from_file(Path(args.normalizer))
    return Choices(args.activation, args.output_activation, normalizer)


def _document(args: ImportArgs, facts: Facts, task: Task | None) -> tuple[Document, list[str]]:
    """Return what source, person and task say of the contract together, and notes."""
    base: Document = {}
    if args.contract is not None:
        name = f"--contract {args.contract}"
        base = read_yaml(read_text(args.contract, "--contract"), name)
        check_shape(base, name)
        base = in_order_of(base, facts.document)
    given = given_document(args, facts, base)
    fallback = None
    if task is not None:
        own = msgspec.json.decode(msgspec.json.encode(task.contract(unpublished(task))))
        fallback = (f"--task {task.name}", own)
    return complete(facts, given, fallback)


def _contract(
    args: ImportArgs, content: bytes, network: _Network, facts: Facts, document: Document, asks: tuple[str, ...]
) -> PolicyContract:
    """Return the contract, whole.

    Raises:
        InputError: A field is unsaid, or the network has other sizes than it says.
    """
    identity = document.setdefault("identity", {})
    identity["toolkit_version"] = __version__
    identity["checkpoint_sha256"] = hashlib.sha256(content).hexdigest()
    identity["config_sha256"] = _config_sha256(args)
    if document.setdefault("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise InputError(f"--contract: schema_version: expected {SCHEMA_VERSION}, got {document['schema_version']}")
    if inner(document, "model", "recurrent"):
        raise InputError("--contract: model.recurrent: expected none, since networks with memory are not imported")
    infer_histories(document, network.sizes[0])
    document["model"] = msgspec.json.decode(msgspec.json.encode(network.model))
    unsaid = unsaid_fields(facts, document)
    if unsaid or asks:
        texts = [*asks, *_grouped([(each.path, each.text) for each in unsaid])]
        raise InputError(f"{args.source}: not all is said that a robot must know: {'; '.join(texts)}")
    data = msgspec.json.encode(document)
    try:
        # Before all else, since whatever else does not fit follows from it.
        _check_sizes(msgspec.json.decode(data, type=PolicyContract), network)
        return decode_contract(data)
    except msgspec.ValidationError as error:
        raise InputError(f"{args.source}: contract: {error}; say it otherwise, or with a --contract file") from error
    except ContractError as error:
        raise InputError(f"{args.source}: {error}; say it otherwise, or with a --contract file") from error


def _grouped(unsaid: list[tuple[str, str]]) -> list[str]:
    """Put fields for which there is the same to say into one sentence."""
    sentences: dict[str, list[str]] = {}
    for path, text in unsaid:
        sentences.setdefault(text.removeprefix(path), []).append(path)
    return [f"{', '.join(paths)}{rest}" for rest, paths in sentences.items()]


def _check_sizes(contract: PolicyContract, network: _Network) -> None:
    observation_size, action_size = network.sizes
    joints, terms = contract.action.joints, contract.observation.terms
    if len(joints) != action_size:
        raise InputError(
            f"source: its network puts out {action_size} actions, contract.action.joints names {len(joints)}: it "
            "is the policy of another robot or task"
        )
    told = sum(len(term.scale) * term.history_length for term in terms)
    if told != observation_size:
        sizes = ", ".join(f"{term.name} {len(term.scale)} × {term.history_length}" for term in terms)
        raise InputError(
            f"source: its network takes {observation_size} observations, contract.observation has {told} ({sizes}): it "
            "is the policy of another task, or a term or a history is wrong"
        )


def _config_sha256(args: ImportArgs) -> str:
    """Return a digest of everything that the contract was made from besides the source."""
    unrelated = ("source", "out", "signing_key", "seed")
    told = {name: str(value) for name, value in sorted(vars(args).items()) if name not in unrelated}
    for name in ("deploy", "contract", "normalizer"):
        path = getattr(args, name)
        if path is not None and Path(path).is_file():
            told[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def _golden(policy: BatchPolicy, task: Task | None, contract: PolicyContract, seed: int) -> tuple[Golden, str]:
    """Record a run: on the plant of the task where the contract is its own, else over all that the contract allows."""
    if task is not None:
        own = task.contract(contract.identity)
        if msgspec.structs.replace(own, model=contract.model) == contract:
            return record_golden(policy, task, contract, seed=seed), "the task in simulation"
    return record_wandering(policy, contract, steps=GOLDEN_STEPS, seed=seed), "all that the contract allows"
