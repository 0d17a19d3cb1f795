"""A small language model on the sources of Python's own standard library, trained without waiting for slow workers.

Run: python examples/language_model.py --workers 4 --epochs 3 --directory runs/gpt
It takes minutes on two cores, prints the perplexity, and writes model.safetensors. Interrupt it at any time, and
resume it with --resume. `asyncsgd train examples.language_model:task` trains the same task with any other method.
--megabytes 0.1 takes less text, to try it out in seconds.

Run: python examples/language_model.py --method async_diloco
It trains a smaller model as on machines that are far apart and unequal: workers take 50 local steps of AdamW per
message, and the slowest one takes 5.7 times as long for a step as the fastest. --method diloco waits for it.
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
SECONDS = (0.58, 0.75, 1.51, 3.33)
"""How long the workers that are far apart take for a mini-batch, relative to each other."""


STEPS = {"async_diloco": 0.7, "diloco": 0.7, "decoupled_diloco": 0.7}
"""The step size of the server for each method that sends few updates."""


class Size(NamedTuple):
    """The size of the model and of its mini-batches."""

    layers: int
    width: int
    length: int
    rows: int
    accumulate: int


USUAL = Size(layers=4, width=128, length=LENGTH, rows=32, accumulate=4)
SMALL = Size(layers=2, width=64, length=64, rows=4, accumulate=1)
"""So small that the pause of a slow worker, not two cores, decides how long a run takes."""


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

    def __init__(self, vocab: int, layers: int, width: int, heads: int = 4, length: int = LENGTH) -> None:
        super().__init__()
        self.embed, self.embed_position = nn.Embedding(vocab, width), nn.Embedding(length, width)
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

    def __init__(self, text: bytes, length: int = LENGTH) -> None:
        self.tokens, self.length = torch.frombuffer(bytearray(text), dtype=torch.uint8), length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        piece = self.tokens[row * self.length : (row + 1) * self.length + 1].long()
        return {"tokens": piece[:-1], "labels": piece[1:]}


def sources(size: int) -> bytes:
    """Return the first bytes of the standard library's modules, in the order of their names."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return text[:size]


def task(megabytes: float = 1.0, seed: int = 0, size: Size = USUAL) -> asgd.tasks.TorchTask:
    """Return the task: the last twentieth of the text is held out."""
    text = sources(int(megabytes * 1_000_000))
    cut = len(text) * 19 // 20
    torch.manual_seed(seed)
    model = TinyGPT(vocab=256, layers=size.layers, width=size.width, length=size.length)  # its own loss inside
    return asgd.tasks.torch(
        model,
        step=lambda model, batch: model(batch["tokens"], labels=batch["labels"]).loss,
        data=Text(text[:cut], size.length),
        batch_size=size.rows,
        accumulate=size.accumulate,
        sampling="epochs",
        sampling_seed=seed,
        test=Text(text[cut:], size.length),
        derived={"perplexity": lambda m: math.exp(m["loss"])},
    )


def method(warmup: int) -> asgd.Method:
    """Return the method: AdamW, with clipped updates and smaller steps for late ones."""
    schedule = asgd.schedules.cosine(peak=3e-4, warmup=warmup)
    optimizer = asgd.optimizers.adamw(weight_decay=0.1, exclude=("bias", "norm", "embed"))
    return asgd.delay_adaptive(schedule).clipped(1.0).using(optimizer=optimizer)


def far_apart(name: str, warmup: int, total: int | None) -> asgd.Method:
    """Return a method whose workers take 50 steps of AdamW between two messages."""
    recipes = {"async_diloco": asgd.async_diloco, "diloco": asgd.diloco, "decoupled_diloco": asgd.decoupled_diloco}
    schedule = asgd.schedules.cosine(peak=4e-3, warmup=warmup, total=total)  # of the mini-batches handed out
    return recipes[name](stepsize=STEPS[name], steps=50, inner_stepsize=schedule)


def main() -> None:
    """Train, and write the model and a report."""
    parser = argparse.ArgumentParser(description="Train a small GPT on the sources of Python's standard library.")
    parser.add_argument("--method", choices=("delay_adaptive", *STEPS), default="delay_adaptive", help="method")
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=None, help="passes over the text (default: 3)")
    length.add_argument("--iterations", type=int, default=None, help="updates to apply, in place of --epochs")
    parser.add_argument("--megabytes", type=float, default=1.0, help=argparse.SUPPRESS)  # for tests: see above
    parser.add_argument("--warmup", type=int, default=200, help="mini-batches in which the step size grows to its peak")
    parser.add_argument(
        "--unit", type=float, default=0.02, help="seconds of one unit of time of the workers that are far apart"
    )
    parser.add_argument("--directory", default="runs/gpt", help="folder for the run, its checkpoints and its report")
    parser.add_argument("--resume", action="store_true", help="resume the run in --directory")
    options = parser.parse_args()
    if options.epochs is None and options.iterations is None:
        options.epochs = 3

    if options.method == "delay_adaptive":
        problem, chosen = task(options.megabytes), method(options.warmup)
        engine = asgd.engines.processes(options.workers)
    else:
        problem = task(options.megabytes, size=SMALL)
        # With steps by speed, updates may have fewer mini-batches: the schedule of --iterations then ends early.
        total = options.iterations * 50 if options.epochs is None else options.epochs * problem.batches_per_epoch
        chosen = far_apart(options.method, options.warmup, total)
        seconds = [options.unit * SECONDS[worker % len(SECONDS)] for worker in range(options.workers)]
        engine = asgd.engines.processes(options.workers, threads=1, min_seconds=seconds)
    run = asgd.train(
        problem,
        chosen,
        engine,
        epochs=options.epochs,
        iterations=options.iterations,
        every=50 if options.method == "delay_adaptive" else 8,
        directory=options.directory,
        resume=options.resume,
        callbacks=[asgd.callbacks.EarlyStopping("loss"), asgd.callbacks.SaveBest("loss")],
    )
    print(f"perplexity {run.metrics['perplexity'][-1]:.2f}")
    up, down = chosen.message_bytes(len(run.x), run.x.dtype)
    print(f"{run.trace.iterations} updates of {up:,} bytes went to the server, and models of {down:,} bytes came back")
    print(f"wrote {run.write_report(Path(options.directory) / 'report.html')}")
    run.write_model("model.safetensors")
    print(complete(run.module(), "def main("))


@torch.no_grad()
def complete(model: TinyGPT, text: str, length: int = 80) -> str:
    """Return the text with the tokens that the model finds most likely after it."""
    tokens = list(text.encode())
    for _ in range(length):
        logits = model(torch.tensor([tokens[-model.embed_position.num_embeddings :]])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    main()
