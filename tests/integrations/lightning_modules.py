"""LightningModules as people write them, small: a transformer and a convolutional network."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader

from tests.methods.tiny import convnet, gpt2, images, text


class Samples(torch.utils.data.Dataset[Any]):
    """The samples of one batch, one by one."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch["labels"])

    def __getitem__(self, place: int) -> Any:
        return {name: part[place] for name, part in self._batch.items()}


def tokens(samples: int, length: int = 16) -> Samples:
    return Samples(text(samples, length))


def pictures(samples: int) -> Samples:
    pixels, labels = images(samples, side=24)
    return Samples({"images": pixels, "labels": labels})


def loader(samples: Samples, size: int) -> DataLoader[Any]:
    return DataLoader(samples, batch_size=size)


class Module(LightningModule):
    """One optimizer, a schedule, a loss that is logged, and a validation step."""

    scheduled = True

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        output = self.model(**batch)
        loss: torch.Tensor = output if isinstance(output, torch.Tensor) else output.loss
        self.log("train_loss", loss, on_step=True, logger=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        output = self.model(**batch)
        self.log("val_loss", output if isinstance(output, torch.Tensor) else output.loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        if not self.scheduled:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Language(Module):
    """A causal language model, which says how its loss can be computed in chunks."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__(gpt2(layers, dropout=0.0))

    def linear_head(self, batch: Any) -> Any:
        hidden = self.model.base_model(input_ids=batch["input_ids"]).last_hidden_state
        targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
        return hidden, self.model.lm_head.weight, None, targets


class Pictures(Module):
    def __init__(self) -> None:
        super().__init__(convnet(dropout=0.0))


class Data(LightningDataModule):
    """Makes its loader of the batch size that it has when it is asked."""

    def __init__(self, samples: Samples, batch_size: int = 1) -> None:
        super().__init__()
        self.samples = samples
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return loader(self.samples, self.batch_size)
