"""policy.yaml: what is written is read back, and every mistake in a hand-written file is explained."""

import itertools
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from advisor.errors import PolicyError
from advisor.hardware.mesh import Mesh
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.setting import use
from advisor.policy.file import CostEvidence, Evidence, PolicyFile, load_policy_file, policy_line, write_policy_file
from advisor.policy.fingerprints import Fingerprints
from advisor.policy.policy import Policy

POLICY = Policy(
    methods=(use("checkpoint", every=2), use("precision", dtype="bf16")), micro_batch=8, accumulation_steps=2
)
EVIDENCE = Evidence(
    goal="faster",
    date="2026-01-02",
    samples_per_second=12.5,
    relative_spread=0.01,
    peak_bytes=2**30,
    memory_limit_bytes=2**31,
    fidelity="precision",
    tie=False,
    trials=7,
    why=["because it was measured"],
)
FINGERPRINTS = Fingerprints(
    workload={"name": "gpt2", "fingerprint": "ab"}, hardware={"name": "a GPU"}, versions={"torch": "2"}, request="cd"
)


def test_a_policy_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = PolicyFile(policy=POLICY, evidence=EVIDENCE, fingerprints=FINGERPRINTS)
    write_policy_file(file, tmp_path / "policy.yaml", header="two\nlines")
    assert load_policy_file(tmp_path / "policy.yaml") == file
    assert (tmp_path / "policy.yaml").read_text().startswith("# two\n# lines\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.yaml"], "no temporary file may be left"


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)
def test_a_policy_that_was_read_back_has_the_key_that_it_had(method: Method, tmp_path: Path) -> None:
    names, choices = ([getattr(one, field) for one in method.parameters] for field in ("name", "choices"))
    for values in itertools.product(*choices):
        policy = Policy(methods=(use(method.name, **dict(zip(names, values, strict=True))),), micro_batch=8)
        write_policy_file(PolicyFile(policy=policy), tmp_path / "policy.yaml", header="")
        assert load_policy_file(tmp_path / "policy.yaml").policy.key == policy.key


def test_a_file_that_was_cut_off_is_damaged_wherever_that_was(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write_policy_file(PolicyFile(policy=POLICY, evidence=EVIDENCE, fingerprints=FINGERPRINTS), path, header="by hand")
    whole = path.read_text()
    for end in range(whole.index("schema"), len(whole) - len("...\n")):
        path.write_text(whole[:end])
        with pytest.raises(PolicyError, match=r"damaged: it was cut off after line \d+, so that .* missing\. Copy it"):
            load_policy_file(path)
    path.write_text(whole[: whole.index("  accumulation_steps")])
    with pytest.raises(PolicyError, match="the end of policy and evidence and fingerprints are missing"):
        load_policy_file(path)
    path.write_text(whole.replace("\n", "\r\n") + "# a remark\n")
    assert load_policy_file(path).policy == POLICY


def test_remarks_may_follow_the_end_of_a_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write_policy_file(PolicyFile(policy=POLICY), path, header="by hand")
    whole = path.read_text()
    for remark in ("\n  # indented\n", "# a remark"):
        path.write_text(whole + remark)
        assert load_policy_file(path).policy == POLICY
    path.write_text(whole.removesuffix("\n") + "  # the end\n")
    assert load_policy_file(path).policy == POLICY
    path.write_text(f"{whole}model_size: {{layers: 2}}\n")
    last = len(whole.splitlines()) + 1
    with pytest.raises(PolicyError, match=f"goes on after it in line {last}. Move what stands there above the dots"):
        load_policy_file(path)
    path.write_text(whole.removesuffix("...\n"))
    with pytest.raises(
        PolicyError, match="only a formatter left out the three dots of its last line, write them there"
    ):
        load_policy_file(path)


def test_a_policy_on_one_line_is_read_from_a_pipe() -> None:
    settled = msgspec.structs.replace(POLICY, settled={"checkpoint": "it's 1e-05: [1, 2]"})
    file = PolicyFile(policy=settled, baseline=Policy(micro_batch=4))
    line = policy_line(file)
    assert "\n" not in line
    program = "from advisor.policy.file import *; print(policy_line(load_policy_file('/dev/stdin')))"
    read = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True, text=True, check=True)
    assert read.stdout == f"{line}\n"


def test_what_methods_settled_on_is_read_back(tmp_path: Path) -> None:
    settled = msgspec.structs.replace(POLICY, settled={"checkpoint": '{"plan":[0,[1,2]]}'})
    path = tmp_path / "policy.yaml"
    write_policy_file(PolicyFile(policy=settled), path, header="")
    assert load_policy_file(path).policy == settled


def test_the_evidence_for_the_least_cost_names_the_price(tmp_path: Path) -> None:
    cost = CostEvidence(
        latency_seconds=0.5,
        usd_per_iteration=0.001,
        gpu_count=2,
        usd_per_hour=3.6,
        price_source="--price",
        price_date="as given",
    )
    evidence = msgspec.structs.replace(EVIDENCE, goal="cheapest", cost=cost)
    path = tmp_path / "policy.yaml"
    write_policy_file(PolicyFile(policy=POLICY, evidence=evidence), path, header="")
    assert load_policy_file(path).evidence == evidence
    path.write_text(path.read_text().replace("price_source", "price_from"))
    with pytest.raises(PolicyError, match=r"fields there are: .*price_source"):
        load_policy_file(path)


def test_a_mesh_is_read_back_and_written_only_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    cut = Policy(micro_batch=2, gpu_count=4, mesh=Mesh(tensor=2))
    write_policy_file(PolicyFile(policy=cut), path, header="")
    assert load_policy_file(path).policy == cut
    assert "mesh:\n    tensor: 2\n" in path.read_text()
    write_policy_file(PolicyFile(policy=Policy(micro_batch=2, gpu_count=4)), path, header="")
    assert "mesh" not in path.read_text()


def test_a_file_written_by_hand_needs_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: 1\npolicy:\n  methods: {checkpoint: {every: 1}}\n  micro_batch: 4\n")
    file = load_policy_file(path)
    assert file.policy == Policy(methods=(use("checkpoint", every=1),), micro_batch=4)
    assert file.evidence is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schema: 2\npolicy: {micro_batch: 1}", "schema: 1"),
        ("policy: {micro_batch: 1}", "schema: 1"),
        ("[1, 2", "must be valid YAML"),
        ("schema: 1\npolicy: {micro_batch: 1, microbatch: 2}", "accumulation_steps"),
        ("schema: 1\npolicy: {micro_batch: many}", "micro_batch"),
        ("schema: 1\npolicy: {micro_batch: 0}", "micro_batch must be at least 1"),
        ("schema: 1\npolicy: {micro_batch: 1, methods: {chekpoint: {every: 1}}}", "checkpoint"),
        ("schema: 1\npolicy: {micro_batch: 1, methods: {checkpoint: {each: 1}}}", "every"),
        ("schema: 1\npolicy: {micro_batch: 1, methods: {checkpoint: {every: 99}}}", "one of 1, 2"),
        (
            "schema: 1\npolicy: {micro_batch: 1, gpu_count: 4, mesh: {tensor: 3}}",
            "a multiple of 3 GPUs, and",
        ),
        ("schema: 1\npolicy: {micro_batch: 1, gpu_count: 4, mesh: {tensor: 0}}", "mesh.tensor must be at least 1"),
        ("schema: 1\npolicy: {micro_batch: 1, gpu_count: 4, mesh: {rows: 2}}", "tensor, pipeline"),
        ("schema: 1\npolicy: {micro_batch: 1, settled: {checkpoint: x}}", "checkpoint is none of them"),
    ],
)
def test_a_mistake_in_a_policy_file_is_explained_with_what_is_valid(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError) as raised:
        load_policy_file(path)
    assert expected in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"must be readable, .*\. A search writes one: momadvise --goal faster MODEL"):
        load_policy_file(tmp_path / "none.yaml")


def test_a_file_keeps_what_its_policy_was_compared_with(tmp_path: Path) -> None:
    path, own = tmp_path / "policy.yaml", Policy(methods=(use("checkpoint", every=2),), micro_batch=2)
    write_policy_file(PolicyFile(policy=POLICY, baseline=own), path, header="")
    assert load_policy_file(path).baseline == own
    write_policy_file(PolicyFile(policy=POLICY), path, header="")
    assert "baseline" not in path.read_text()
