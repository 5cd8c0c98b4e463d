"""Trains a small vision transformer on the digits by the Trainer of Hugging Face's Transformers; its ranks talk by DDL.

    ddlrun -np 2 examples/torch_transformers.py

The model is made from a configuration, so nothing is downloaded (pip install transformers accelerate). The lines marked
(DDL) are those that are added to a script that one starts by torchrun.
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch.distributed as dist
from torch.utils.data import TensorDataset
from torch_digits import digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import ddl_torch  # noqa: F401 (DDL) makes the backend known


def named(data: TensorDataset) -> List[Dict[str, Any]]:
    return [{"pixel_values": image, "labels": label} for image, label in data]


def accuracy(prediction: Any) -> Dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    dist.init_process_group("ddl")  # (DDL) before the arguments: they take the group that is there
    arguments = TrainingArguments(
        output_dir="build/torch_transformers",
        use_cpu=True,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        num_train_epochs=8,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        seed=1,
    )
    set_seed(1)
    shape = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.1,
    )
    train, test = digits()
    trainer = Trainer(
        ViTForImageClassification(shape),
        arguments,
        train_dataset=named(train),
        eval_dataset=named(test),
        compute_metrics=accuracy,
    )
    trainer.train()
    test_accuracy = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"test accuracy {test_accuracy:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
