"""The Trainer of Hugging Face's Transformers trains on the backend "ddl" to what it trains to on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_groups import named_when_killed, require, trained_alike

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
import ddl_torch

class Same(Trainer):
    def training_step(self, *args, **kwargs):
        assert isinstance(self.model_wrapped, torch.nn.parallel.DistributedDataParallel)
        assert dist.get_backend() == sys.argv[1] and self.args.world_size == 2
        return super().training_step(*args, **kwargs)

dist.init_process_group(sys.argv[1])
arguments = TrainingArguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=3,
    learning_rate=3e-3, logging_strategy="no", save_strategy="epoch", eval_strategy="epoch", report_to=[], seed=1,
    disable_tqdm=True,
)
set_seed(1)
config = BertConfig(
    vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=6,
)
words = torch.randint(0, 8, (250, 6))  # uneven: the last batches are filled up
sentences = [{"input_ids": line, "labels": line[0] // 4} for line in words]
trainer = Same(
    BertForSequenceClassification(config), arguments, train_dataset=sentences, eval_dataset=sentences,
    compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())},
)
trainer.train()
assert len(trainer.predict(sentences).predictions) == 250
assert trainer.evaluate()["eval_right"] > 0.8
again = BertForSequenceClassification.from_pretrained(f"out/checkpoint-{trainer.state.global_step}")
if trainer.is_world_process_zero():
    weights = torch.cat([p.detach().ravel() for p in trainer.model.parameters()])
    assert torch.equal(weights, torch.cat([p.detach().ravel() for p in again.parameters()]))
    torch.save(weights, sys.argv[2])
dist.destroy_process_group()
"""


def test_training_as_with_gloo(tmp_path: Path) -> None:
    require("transformers")
    trained_alike(PROGRAM, tmp_path)


KILLED = """
import os
import signal
import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import ddl_torch

class Killed(Trainer):
    def training_step(self, *args, **kwargs):
        if self.state.global_step == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(*args, **kwargs)

dist.init_process_group("ddl")
arguments = TrainingArguments(output_dir="out", use_cpu=True, max_steps=5, save_strategy="no", report_to=[])
config = BertConfig(
    vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=6,
)
sentences = [{"input_ids": line, "labels": line[0] // 4} for line in torch.randint(0, 8, (250, 6))]
Killed(BertForSequenceClassification(config), arguments, train_dataset=sentences).train()
"""


@pytest.mark.faults
def test_a_rank_is_killed(tmp_path: Path) -> None:
    require("transformers")
    named_when_killed(KILLED, tmp_path)
