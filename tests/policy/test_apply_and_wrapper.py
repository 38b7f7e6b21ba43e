"""The emitted wrapper applies exactly the policy that it was written for."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import advisor
from advisor.errors import MethodRefusedError, PolicyError, UserError
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.policy.file import PolicyFile, write_policy_file
from advisor.policy.policy import Policy
from advisor.policy.wrapper import apply_lines, size_lines, wrapper_source, write_wrapper
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.reduction import Reduction


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(8, 8)
        self.outside = torch.nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.outside(torch.relu(self.inside(inputs)))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.blocks(inputs).square().mean()


def build() -> Model:
    torch.manual_seed(0)
    return Model()


def batch(samples: int) -> tuple[torch.Tensor]:
    return (torch.randn(samples, 8, generator=torch.Generator().manual_seed(1)),)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("emitted_wrapper", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


POLICY = Policy(methods=(use("checkpoint", every=2), use("optimizer_in_backward")), micro_batch=4, accumulation_steps=1)


def test_the_wrapper_holds_the_policy_it_was_written_for_and_steps_as_plain_training_does(tmp_path: Path) -> None:
    write_wrapper(POLICY, tmp_path / "wrapper.py", headline="A test.", details="Nothing measured.")
    wrapper = load(tmp_path / "wrapper.py")
    assert wrapper.POLICY == POLICY

    wrapped, plain = build(), build()
    training = wrapper.prepare(wrapped, device="cpu")
    optimizer = torch.optim.AdamW(plain.parameters())
    for _ in range(2):
        loss = training.step(batch(4))
        plain_loss = plain(*batch(4))
        plain_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(loss, plain_loss.detach())
    for name, value in training.state_dict()["model"].items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_the_wrapper_of_plain_training_says_so(tmp_path: Path) -> None:
    source = wrapper_source(Policy(micro_batch=2), headline="Plain.", details="")
    assert "methods=(),  # plain training" in source
    write_wrapper(Policy(micro_batch=2), tmp_path / "wrapper.py", headline="Plain.", details="")
    assert Policy(micro_batch=2) == load(tmp_path / "wrapper.py").POLICY


def test_no_name_can_break_out_of_the_wrappers_docstring(tmp_path: Path) -> None:
    path = tmp_path / "wrapper.py"
    write_wrapper(Policy(micro_batch=1), path, headline='C:\\new """\nraise SystemExit', details="")
    assert load(path).POLICY.micro_batch == 1


def test_a_batch_larger_than_the_micro_batch_is_accumulated() -> None:
    whole, pieces = build(), build()
    one = apply_policy(Policy(micro_batch=8), whole, device="cpu")
    many = apply_policy(Policy(micro_batch=2, accumulation_steps=4), pieces, device="cpu")
    assert one.step(batch(8)).item() == pytest.approx(many.step(batch(8)).item(), rel=1e-5)
    for first, second in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def test_the_library_call_takes_a_policy_an_answer_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("schema: 1\npolicy: {micro_batch: 2, methods: {checkpoint: {every: 1}}}\n")
    from_file = advisor.apply_policy(path, build(), device="cpu")
    from_policy = advisor.apply_policy(
        advisor.Policy(methods=(advisor.use("checkpoint", every=1),), micro_batch=2), build(), device="cpu"
    )
    assert from_file.step(batch(2)).item() == from_policy.step(batch(2)).item()


SEVERAL = Policy(
    methods=(use("ddp", bucket_views=True, static_graph=False),), micro_batch=2, accumulation_steps=3, gpu_count=4
)


def test_a_policy_for_several_gpus_says_how_its_processes_are_started() -> None:
    with pytest.raises(PolicyError, match=r"(?s)torchrun --nproc-per-node 4 train.py.*init_process_group\(\)"):
        apply_policy(SEVERAL, build(), device="cpu")


def test_the_wrapper_for_several_gpus_holds_their_number_and_says_what_each_process_is_given(tmp_path: Path) -> None:
    write_wrapper(SEVERAL, tmp_path / "wrapper.py", headline="A test.", details="")
    wrapper = load(tmp_path / "wrapper.py")
    assert wrapper.POLICY == SEVERAL
    assert "training.accumulating()" in wrapper.prepare.__doc__
    assert any(
        f"torchrun --nnodes 2 --nproc-per-node {SEVERAL.gpu_count // 2} " in line
        for line in apply_lines(SEVERAL, (), machines=2)
    )
    lines = apply_lines(SEVERAL, ())
    assert "torchrun --nproc-per-node 4 train.py" in lines[1]
    assert lines[-1].endswith("batch: this process's 6 of 24 samples on the CPU")


def test_the_wrapper_does_again_what_methods_settled_on(tmp_path: Path) -> None:
    policy = Policy(
        methods=(use("optimal_checkpoint", budget=0.25),),
        micro_batch=2,
        settled={"optimal_checkpoint": '{"plan":[0,[1]],"note":"it\'s \\"quoted\\""}'},
    )
    write_wrapper(policy, tmp_path / "wrapper.py", headline="A test.", details="")
    assert policy == load(tmp_path / "wrapper.py").POLICY
    assert "settled" not in wrapper_source(POLICY, headline="h", details="d")


def test_nothing_is_said_of_processes_where_there_is_one() -> None:
    source = wrapper_source(POLICY, headline="h", details="d")
    assert "torchrun" not in source
    assert "gpu_count" not in source
    assert len(apply_lines(POLICY, ())) == 3


def test_a_method_that_cannot_apply_is_refused_with_its_reason() -> None:
    policy = Policy(methods=(use("checkpoint", every=1),), micro_batch=1)
    with pytest.raises(MethodRefusedError, match="block"):
        apply_policy(policy, torch.nn.Linear(2, 2), device="cpu")


def test_advisor_names_resolve_lazily() -> None:
    for name in advisor.__all__:
        assert getattr(advisor, name) is not None
    with pytest.raises(AttributeError, match="it has: Answer"):
        advisor.nothing  # noqa: B018


def test_the_lines_that_apply_it_pass_on_what_the_workload_defines() -> None:
    """The trap: without them the wrapper would train with AdamW what was measured with the user's optimizer."""
    lines = apply_lines(POLICY, ("build_optimizer", "max_grad_norm"))
    names = {
        "prepare": lambda model, **options: (model, options),
        "model": "model",
        "build_optimizer": "mine",
        "MAX_GRAD_NORM": 1.0,
    }
    exec(lines[1], names)
    assert names["training"] == ("model", {"build_optimizer": "mine", "max_grad_norm": 1.0})
    source = wrapper_source(POLICY, headline="h", details="d", options=("build_optimizer",))
    assert "prepare(model, build_optimizer=build_optimizer)" in source


def test_a_clipping_that_no_model_file_says_is_passed_as_its_value(tmp_path: Path) -> None:
    """Trap: "max_grad_norm=MAX_GRAD_NORM, as in your model file" of what ``--from`` said."""
    line = apply_lines(POLICY, ("max_grad_norm=1.0",))[1]
    assert line == "training = prepare(model, max_grad_norm=1.0)  # a plain model; as you build it today"
    path = tmp_path / "wrapper.py"
    write_wrapper(Policy(micro_batch=2), path, headline="h", details="d", options=("max_grad_norm=1.0",))
    with pytest.raises(UserError, match=r"given max_grad_norm as well.*max_grad_norm=1.0\)"):
        load(path).prepare(torch.nn.Linear(2, 2))


def test_the_lines_for_a_size_pass_each_function_what_it_takes() -> None:
    size = {"layers": 24, "pixels": 96}
    takers = {"build_model": ("layers", "pixels"), "make_batch": ("pixels",)}
    assert size_lines(size, takers) == (
        "model = build_model(layers=24, pixels=96)  # the size that was measured",
        "batch = make_batch(samples, pixels=96)",
    )
    assert size_lines({}, takers) == ()


def test_a_hugging_face_size_is_one_of_its_config() -> None:
    (line,) = size_lines({"hidden_size": 96}, {"config": ("hidden_size",)})
    assert line == "# model: from its config with hidden_size=96; a head stays as wide as it is"


def test_the_size_stands_in_the_docstring_of_the_wrapper() -> None:
    lines = size_lines({"layers": 24}, {"build_model": ("layers",)})
    source = wrapper_source(POLICY, headline="h", details="d", size=lines)
    assert "    model = build_model(layers=24)  # the size that was measured\n    from wrapper" in source
    compile(source, "wrapper.py", "exec")


def test_a_wrapper_refuses_to_train_without_what_was_measured(tmp_path: Path) -> None:
    """Trap: ``prepare(model)`` trained with AdamW, another loss and no clipping, without a word."""
    path = tmp_path / "wrapper.py"
    options = ("compute_loss", "build_optimizer", "max_grad_norm")
    write_wrapper(Policy(micro_batch=2), path, headline="h", details="d", options=options)
    prepare = load(path).prepare
    with pytest.raises(UserError, match="given build_optimizer, max_grad_norm as well") as refused:
        prepare(torch.nn.Linear(2, 2), compute_loss=lambda model, batch: model(batch).mean())
    assert (
        "prepare(model, compute_loss=compute_loss, build_optimizer=build_optimizer, max_grad_norm=MAX_GRAD_NORM)"
        in (str(refused.value))
    )
    training = prepare(
        torch.nn.Linear(2, 2),
        device="cpu",
        compute_loss=lambda model, batch: model(batch).mean(),
        build_optimizer=torch.optim.SGD,
        max_grad_norm=1.0,
    )
    assert training.max_grad_norm == 1.0


@pytest.mark.parametrize("methods", [(), (use("fused_optimizer"),)])
def test_a_model_is_prepared_once(methods: tuple[MethodSetting, ...]) -> None:
    model = torch.nn.Linear(2, 2)
    apply_policy(Policy(methods=methods, micro_batch=2), model, device="cpu")
    with pytest.raises(PolicyError, match="must be applied to a plain model, but Linear has one already"):
        apply_policy(Policy(micro_batch=2), model, device="cpu")


def test_a_wrapper_says_where_samples_are_and_how_the_loss_is_reduced(tmp_path: Path) -> None:
    layout = BatchLayout(
        dims={"0": 1, "1": None}, counted_by="0", counted_dim=1, is_usual=False, reduction=Reduction(kind="sum")
    )
    path = tmp_path / "wrapper.py"
    write_wrapper(Policy(micro_batch=2), path, headline="h", details="d", layout=layout)
    training = load(path).prepare(torch.nn.Linear(2, 2), device="cpu")
    assert training.sample_dims == {"0": 1, "1": None}
    assert training.reduction == Reduction(kind="sum")


def test_so_does_a_policy_file(tmp_path: Path) -> None:
    file = PolicyFile(
        policy=Policy(micro_batch=2), sample_dims={"x": 1}, reduction=Reduction(targets="y", ignore_index=0)
    )
    write_policy_file(file, tmp_path / "policy.yaml", header="")
    training = apply_policy(tmp_path / "policy.yaml", torch.nn.Linear(2, 2), device="cpu")
    assert training.sample_dims == {"x": 1}
    assert training.reduction == Reduction(targets="y", ignore_index=0)


def test_a_model_that_a_policy_was_refused_for_may_have_another() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(MethodRefusedError):
        apply_policy(Policy(methods=(use("checkpoint", every=2),), micro_batch=2), model, device="cpu")
    training = apply_policy(Policy(micro_batch=2), model, device="cpu")
    training.close()
    apply_policy(Policy(micro_batch=2), model, device="cpu")
