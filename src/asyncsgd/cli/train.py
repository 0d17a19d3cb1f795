"""``asyncsgd train`` and ``asyncsgd replay``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from asyncsgd.cli.application import TRAIN, TRUST, Json, app, examples

METHOD, RUN, WORKERS, RAY = "The method", "The run", "Workers", "With --engine ray"


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "train examples.digits:task --stepsize 0.05 --iterations 2000",
        "train my.module:task --method mifa --stepsize 0.1 --iterations 2000",
        "train my:task --stepsize 0.1 --schedule cosine --iterations 2000",
        "train my:task --method diloco --steps 50 --compressed int4 --epochs 3",
        "train my.module:task --engine ray --stepsize 0.1 --iterations 2000",
        "train --resume --directory runs/task-1",
    ),
)
def train(
    ctx: typer.Context,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:TASK", help="A task, or a function that returns one. Example: examples.digits:task"
        ),
    ] = None,
    stepsize: Annotated[float | None, typer.Option(help="Step size of the server. Example: 0.05")] = None,
    iterations: Annotated[int | None, typer.Option(help="Number of updates to apply. Example: 2000")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Number of passes over the data, in place of --iterations. Example: 3"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A method that `asyncsgd methods` lists, or module:name.", show_default="delay_adaptive"),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the step size changes; --stepsize is its peak: constant, linear, cosine, inverse_sqrt, or "
            "warmup_stable_decay.",
            show_default="the same in every iteration",
            rich_help_panel=METHOD,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(help="Iterations in which --schedule grows to its peak. Example: 200", rich_help_panel=METHOD),
    ] = None,
    total: Annotated[
        int | None,
        typer.Option(help="Iteration at which --schedule ends.", show_default="--iterations", rich_help_panel=METHOD),
    ] = None,
    final: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that is left when --schedule ends. Example: 0.1",
            show_default="0",
            rich_help_panel=METHOD,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Number of jobs in flight.", show_default="one per worker", rich_help_panel=METHOD),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Scale down updates with a norm above this value.", rich_help_panel=METHOD)
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the noise added to each sum, as a multiple of --clip.", rich_help_panel=METHOD
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of the server's optimizer. Example: 0.9", rich_help_panel=METHOD)
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Optimizer of the server: sgd, momentum, adamw, delayed_nesterov, look_ahead, muon, or a class of "
            "torch.optim such as RAdam.",
            show_default="sgd",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(
            "--local-steps",
            "--steps",
            help="Number of steps that a worker takes per job. Example: 50",
            show_default="the method's",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_stepsize: Annotated[
        float | None,
        typer.Option(
            "--local-stepsize",
            "--inner-stepsize",
            help="Step size of the steps that a worker takes. Example: 0.0004",
            show_default="the method's",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Optimizer of the steps that a worker takes: sgd, momentum, adamw or muon.",
            show_default="the method's, else sgd",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_state: Annotated[
        str | None,
        typer.Option(
            metavar="fresh|kept",
            help="State of --local-optimizer: fresh starts it in every job, kept continues it from the worker's last "
            "applied job.",
            show_default="fresh",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_clip: Annotated[
        float | None,
        typer.Option(help="Scale down gradients of local steps with a norm above this value.", rich_help_panel=METHOD),
    ] = None,
    per_worker: Annotated[
        str | None,
        typer.Option(
            metavar="speed|40,20,20",
            help="Steps per job of each worker: one number per worker, or speed for fewer steps on slower workers.",
            show_default="--local-steps for all",
            rich_help_panel=METHOD,
        ),
    ] = None,
    compressed: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Code used to send updates to the server, with error feedback: float16, bfloat16, int8, int4 or "
            "top_k.",
            show_default="as they are",
            rich_help_panel=METHOD,
        ),
    ] = None,
    compressed_down: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Code used to send models to workers: float16, bfloat16, int8 or int4.",
            show_default="as they are",
            rich_help_panel=METHOD,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option that `asyncsgd methods` lists. Example: --set buffer=10",
            rich_help_panel=METHOD,
        ),
    ] = None,
    json: Json = False,
    directory: Annotated[
        Path | None, typer.Option(help="Run directory. Default: runs/NAME-1, runs/NAME-2, …", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --directory.", rich_help_panel=RUN)
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST, rich_help_panel=RUN)] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help='Stop once a metric reaches a bound. Example: "accuracy >= 0.95"',
            rich_help_panel=RUN,
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            help="Iterations between evaluations.", show_default="a hundredth of the run", rich_help_panel=RUN
        ),
    ] = None,
    evaluation_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which an evaluation that hangs is abandoned. Example: 600",
            show_default="never",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Random seed for dispatch and mini-batches. --noise has a secret seed of its own, new at every start.",
            show_default="0",
            rich_help_panel=RUN,
        ),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC[:PATIENCE]",
            help="Stop after PATIENCE evaluations (default 5) without a better METRIC. Example: loss:10",
            rich_help_panel=RUN,
        ),
    ] = None,
    save_best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Write the model with the best METRIC to best.safetensors in the run directory. Example: accuracy",
            rich_help_panel=RUN,
        ),
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUN)] = 30.0,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers.", show_default="4", rich_help_panel=WORKERS)
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="processes|ray",
            help="Where workers run: processes on this machine, or a Ray cluster.",
            show_default="processes",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="cuda:0,cuda:1",
            help="Devices that the processes compute on, in turn. With --engine ray use --num-gpus.",
            show_default="the GPUs if the task can use them, else cpu",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="CPU threads per worker.", show_default="an equal share of the cores", rich_help_panel=WORKERS
        ),
    ] = None,
    slowdown: Annotated[
        str | None,
        typer.Option(
            metavar="1,1,1,10",
            help="Artificial slowdown for experiments: one factor per worker.",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    min_seconds: Annotated[
        str | None,
        typer.Option(
            metavar=".1,.1,1",
            help="Artificial delay for experiments: the least seconds of a mini-batch, one number per worker.",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    max_failures: Annotated[
        int, typer.Option(help="Stop after this many consecutive failures of one worker.", rich_help_panel=WORKERS)
    ] = 3,
    job_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds after which a job is lost and its worker is replaced.", rich_help_panel=WORKERS),
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds that workers may take to load the task.", show_default="120", rich_help_panel=WORKERS
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of a running Ray cluster: auto, or host:6379.",
            show_default="a new one here",
            rich_help_panel=RAY,
        ),
    ] = None,
    num_cpus: Annotated[
        float | None, typer.Option(help="CPUs that Ray reserves per worker.", show_default="1", rich_help_panel=RAY)
    ] = None,
    num_gpus: Annotated[
        float | None,
        typer.Option(
            help="GPUs that Ray reserves per worker, which computes on the first of them.",
            show_default="0",
            rich_help_panel=RAY,
        ),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="Custom Ray resource per worker. Example: big=1", rich_help_panel=RAY),
    ] = None,
    at_least: Annotated[
        int | None,
        typer.Option(help="Start once this many workers are ready.", show_default="all", rich_help_panel=RAY),
    ] = None,
    working_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Send the Python modules of this folder to all nodes.", rich_help_panel=RAY),
    ] = None,
) -> None:
    """Train with worker processes on this machine, or on a Ray cluster.

    MODULE:TASK is written as uvicorn writes an app: the module, a colon, and the name of the task in it.

    Ctrl-C and SIGTERM save a checkpoint and stop the run. --resume continues it, also after a crash.
    """
    if task is not None and sys.stderr.isatty():
        typer.echo(f"loading {task}", err=True)  # importing PyTorch takes seconds: show that something happens
    from asyncsgd.cli import run_commands

    given = {name: value for name, value in ctx.params.items() if value not in (None, (), [])}
    run = run_commands.train(given)
    run_commands.show(run, as_json=json)
    if run.diverged is not None:
        raise typer.Exit(1)


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples("replay runs/task-1", "replay runs/task-1 --stop 120", "replay runs/task-1 --job 137"),
)
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory. Example: runs/task-1")],
    stop: Annotated[int | None, typer.Option(help="Replay up to this iteration, and show its update.")] = None,
    job: Annotated[
        int | None, typer.Option(help="Show the update of this job, even if the server rejected it.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
    json: Json = False,
) -> None:
    """Compute a run again in one process, and compare it bit for bit.

    Exit code 1 if the replay differs from the run.
    """
    from asyncsgd.cli import run_commands

    if not run_commands.replay(directory, stop, job, as_json=json, trust=trust):
        raise typer.Exit(1)
