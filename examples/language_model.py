"""A small language model on the sources of Python's own standard library, trained without waiting for slow workers.

Run: python examples/language_model.py --workers 4 --epochs 3 --directory runs/gpt
It takes minutes on two cores, prints the perplexity, and writes model.safetensors. Interrupt it at any time, and
resume it with --resume. `asyncsgd train examples.language_model:task` trains the same task with any other method.
"""

import argparse
import math
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import asyncsgd as asgd

LENGTH = 128
"""Tokens per row. A token is one byte."""


class Output(NamedTuple):
    """What the model returns: its own loss if it was given labels."""

    logits: torch.Tensor
    loss: torch.Tensor | None


class Block(nn.Module):
    """Attention to the tokens before, then two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with what this block adds to it."""
        rows, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.dense(self.norm2(x))


class TinyGPT(nn.Module):
    """A GPT whose input and output embeddings are the same matrix."""

    def __init__(self, vocab: int, layers: int, width: int, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.embed_position = nn.Embedding(vocab, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Output:
        """Predict the next token at each place."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.embed(tokens) + self.embed_position(places))))
        if labels is None:
            return Output(logits, None)
        return Output(logits, functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


class Text(Dataset):
    """Pieces of a text as dicts of tokens and of the tokens that follow them."""

    def __init__(self, text: bytes) -> None:
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        piece = self.tokens[row * LENGTH : (row + 1) * LENGTH + 1].long()
        return {"tokens": piece[:-1], "labels": piece[1:]}


def sources(size: int) -> bytes:
    """Return the first bytes of the standard library's modules, in the order of their names."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return text[:size]


def task(megabytes: float = 1.0, seed: int = 0) -> asgd.tasks.TorchTask:
    """Return the task: the last twentieth of the text is held out."""
    text = sources(int(megabytes * 1_000_000))
    cut = len(text) * 19 // 20
    torch.manual_seed(seed)
    model = TinyGPT(vocab=256, layers=4, width=128)  # its own loss inside
    return asgd.tasks.torch(
        model,
        step=lambda model, batch: model(batch["tokens"], labels=batch["labels"]).loss,
        data=Text(text[:cut]),
        batch_size=32,
        accumulate=4,
        sampling="epochs",
        test=Text(text[cut:]),
        derived={"perplexity": lambda m: math.exp(m["loss"])},
    )


def main() -> None:
    """Train, and write the model."""
    parser = argparse.ArgumentParser(description="Train a small GPT on the sources of Python's standard library.")
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=None, help="passes over the text (default: 3)")
    length.add_argument("--iterations", type=int, default=None, help="updates to apply, in place of --epochs")
    parser.add_argument("--warmup", type=int, default=200, help="updates in which the step size grows to its peak")
    parser.add_argument("--directory", default="runs/gpt", help="folder for the run and its checkpoints")
    parser.add_argument("--resume", action="store_true", help="resume the run in --directory")
    options = parser.parse_args()
    if options.epochs is None and options.iterations is None:
        options.epochs = 3

    schedule = asgd.schedules.cosine(peak=3e-4, warmup=options.warmup)
    optimizer = asgd.optimizers.adamw(weight_decay=0.1, exclude=("bias", "norm", "embed"))
    method = asgd.delay_adaptive(schedule).clipped(1.0).using(optimizer=optimizer)
    run = asgd.train(
        task(),
        method,
        asgd.engines.processes(workers=options.workers),
        epochs=options.epochs,
        iterations=options.iterations,
        every=50,
        directory=options.directory,
        resume=options.resume,
        callbacks=[asgd.callbacks.EarlyStopping("loss"), asgd.callbacks.SaveBest("loss")],
    )
    print(f"perplexity {run.metrics['perplexity'][-1]:.2f}")
    run.write_model("model.safetensors")
    print(complete(run.module(), "def main("))


@torch.no_grad()
def complete(model: TinyGPT, text: str, length: int = 80) -> str:
    """Return the text with the tokens that the model finds most likely after it."""
    tokens = list(text.encode())
    for _ in range(length):
        logits = model(torch.tensor([tokens[-LENGTH:]])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    main()
