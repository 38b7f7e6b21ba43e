"""Trainers as people make them, small; classes that other processes import."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.methods.tiny import VOCABULARY, gpt2

LENGTHS = (5, 9, 3, 16, 7, 12, 4, 8)


class Texts(torch.utils.data.Dataset[Any]):
    """Texts of several lengths, with a column that no model takes."""

    def __init__(self, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(place)
        ids = torch.randint(1, VOCABULARY, (self.lengths[place],), generator=generator).tolist()
        return {"input_ids": ids, "labels": list(ids), "note": "from a book"}


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Texts())


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A collator: texts of one length."""
    longest = max(len(sample["input_ids"]) for sample in samples)

    def rows(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([sample[name] + [filler] * (longest - len(sample[name])) for sample in samples])

    assert all(sample.keys() == {"input_ids", "labels"} for sample in samples)
    return {"input_ids": rows("input_ids", 0), "labels": rows("labels", -100)}


class Doubling(transformers.Trainer):
    """Has a loss of its own, with a setting of its own."""

    factor = 2.0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **keywords: Any) -> Any:
        loss = self.factor * model(**inputs).loss
        return (loss, None) if return_outputs else loss


class SFTTrainer(transformers.Trainer):
    """Replaces the model's ``forward``, as trl's does for its usual loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.args.loss_type = "chunked_nll"
        self._set_signature_columns_if_needed()
        patch_forward(self.model)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **keywords: Any) -> Any:
        raise AssertionError("its outputs are those of the replaced forward")


def patch_forward(model: Any) -> None:
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return type(self).forward(self, *arguments, **keywords)

    model.forward = types.MethodType(forward, model)


def trainer_of(folder: Path, kind: type[transformers.Trainer] = transformers.Trainer, **options: Any) -> Any:
    given = {name: options.pop(name) for name in ("model", "train_dataset", "data_collator") if name in options}
    known: dict[str, Any] = {"model": gpt2(2, 0.0), "train_dataset": Texts(), "data_collator": padded}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        use_cpu=True,
        per_device_train_batch_size=4,
        report_to=[],
        **{"learning_rate": 1e-3, "weight_decay": 0.1} | options,
    )
    return kind(args=arguments, **known | given)
