"""What a page takes for granted: small stand-ins for the reader's files, and names that its Python uses."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml

from advisor.goal import Fidelity
from advisor.methods.base import Conflict, Saves, Stage
from advisor.methods.optimizers.adam import AdamReplacement
from advisor.methods.optimizers.traits import OptimizerTraits
from tests.contract.expected import Expected
from tests.docs.blocks import HUB
from tests.integrations.lightning_modules import Data, Language, tokens
from tests.integrations.trainers import Texts, padded, trainer_of

__all__ = ["names_of", "set_up"]

COMMIT = "0" * 40

MYNET = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = torch.nn.Linear(128, 64), torch.nn.Linear(64, 128)

    def forward(self, x):
        return x + self.outside(self.inside(x).relu())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
        self.head = torch.nn.Linear(128, 10)

    def forward(self, inputs, labels):
        return torch.nn.functional.cross_entropy(self.head(self.blocks(inputs)), labels)


def build_model():
    return Net()


def make_batch(batch_size):
    return {"inputs": torch.randn(batch_size, 128), "labels": torch.randint(10, (batch_size,))}
"""

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
AXOLOTL = {
    "base_model": "./llama",
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}],
    "sequence_len": 16,
    "micro_batch_size": 2,
    "optimizer": "adamw_torch",
    "gradient_checkpointing": True,
}
DEEPSPEED = {"train_batch_size": 4, "gradient_clipping": 1.0}


class Brief(Language):
    """Has learned enough after four steps."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.trainer.should_stop = self.trainer.global_step >= 4


def set_up(page: str, folder: Path, tutorial: Path | None) -> None:
    """Put into a folder what a page takes for granted.

    Args:
        page: The page.
        folder: An empty folder.
        tutorial: Where the tutorial was followed to its end; ``None`` for the tutorial itself.
    """
    if tutorial is None:
        return
    shutil.copytree(tutorial, folder, dirs_exist_ok=True)
    model = (folder / "model.py").read_text()
    (folder / "examples").mkdir()
    sized = model.replace("layers=4, width=64", "layers=2, width=16").replace("batch_size, 64", "batch_size, 16")
    for name in ("examples/gpt2", "examples/resnet50"):
        (folder / f"{name}.py").write_text(f'{sized}\n\nSIZES = {{"layers": [2, 3]}}\n')
    (study,) = (tutorial / "momadvise-runs").iterdir()
    for name in ("before", "after", "momadvise-runs/gpt2-bad55a77"):
        shutil.copytree(study, folder / name)
    if page == "docs/how-to.md":
        (folder / "mynet.py").write_text(MYNET)
        (folder / "llama").mkdir()
        (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
        cached(folder / HUB, "HuggingFaceTB/SmolLM2-135M")
        (folder / "axolotl.yaml").write_text(yaml.safe_dump(AXOLOTL))
        (folder / "config.yaml").write_text(yaml.safe_dump(AXOLOTL))
        (folder / "ds_config.json").write_text(json.dumps(DEEPSPEED))


def cached(cache: Path, repository: str) -> None:
    """Put a small config into a Hugging Face cache in the place of a repository's."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 2048}))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)


def names_of(page: str, folder: Path) -> dict[str, Any]:
    """What the Python of a page uses without saying where it comes from."""
    if page == "README.md":
        model = _module(folder / "model.py")
        return {"model": model.build_model(), "batch": model.make_batch(32)}
    if page == "docs/how-to.md":
        trainer, texts = trainer_of(folder), Texts()
        batch = padded([{name: texts[place][name] for name in ("input_ids", "labels")} for place in range(8)])
        return {
            "model": trainer.model,
            "mynet": importlib.import_module("mynet"),
            "batch": batch,
            "loader": [batch, batch],
            "module": Brief(),
            "data": Data(tokens(8)),
        }
    if page == "docs/add-a-method.md":
        known = (AdamReplacement, Conflict, Expected, Fidelity, OptimizerTraits, Saves, Stage)
        return {"torch": torch, "WHICH_OPTIMIZER": "which optimizer", **{one.__name__: one for one in known}}
    return {}


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
