"""Generates tokens by vLLM, with the model split over ranks (tensor parallelism) that talk by DDL.

    VLLM_PLUGINS=ddl ddlrun -np 2 examples/torch_vllm.py
    VLLM_PLUGINS=ddl ddlrun -np 2 examples/torch_vllm.py --model DIRECTORY

How to install vLLM for CPUs: docs/vllm.md. Without a model, each rank makes the same small one from random numbers. So
nothing is downloaded, and the tokens mean nothing. They are the same on one rank and on two.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

PROMPTS = [[1, 5, 9, 30], [7, 7, 100]]


def make_model(directory: str) -> None:
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
    )
    LlamaForCausalLM(shape).save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate tokens by vLLM on DDL.")
    parser.add_argument("--model", help="directory of a model (a small one of random numbers)")
    options = parser.parse_args()
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])  # ddlrun and torchrun set them
    model = options.model or f"random_model.{rank}"
    if options.model is None:
        make_model(model)
    llm = LLM(
        model=model,
        tensor_parallel_size=ranks,
        distributed_executor_backend="external_launcher",  # ddlrun has started the ranks
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
    )
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], greedy, use_tqdm=False)
    if rank == 0:
        print(f"{ranks} ranks on {dist.get_backend()}: {[list(answer.outputs[0].token_ids) for answer in answers]}")


if __name__ == "__main__":
    main()
