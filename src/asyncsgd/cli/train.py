"""``asyncsgd train`` and ``asyncsgd replay``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from asyncsgd.cli.application import TRAIN, Json, app, examples

METHOD, RUN, WORKERS, RAY = "The method", "The run", "Workers", "With --engine ray"


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "train examples.digits:task --stepsize 0.05 --iterations 2000",
        "train my.module:task --method mifa --stepsize 0.1 --iterations 2000",
        "train my.module:task --engine ray --stepsize 0.1 --iterations 2000",
        "train --resume --directory runs/task-1",
    ),
)
def train(
    task: Annotated[
        str | None, typer.Argument(metavar="MODULE:TASK", help="A task, or a function that returns one.")
    ] = None,
    stepsize: Annotated[float | None, typer.Option(help="Step size of the method.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Updates to wait for in all.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A name that asyncsgd methods lists, or module:name.", show_default="delay_adaptive"),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Jobs in flight at once.", show_default="one per worker", rich_help_panel=METHOD)
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Clip every update to this norm.", rich_help_panel=METHOD)] = None,
    noise: Annotated[
        float | None, typer.Option(help="Gaussian noise on each sum, in multiples of --clip.", rich_help_panel=METHOD)
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the server.", rich_help_panel=METHOD)] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Optimizer of the server: sgd, momentum, adamw, or a class of torch.optim such as RAdam.",
            show_default="sgd",
            rich_help_panel=METHOD,
        ),
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="SGD steps that each job takes.", rich_help_panel=METHOD)
    ] = None,
    local_stepsize: Annotated[
        float | None, typer.Option(help="Step size of the local steps.", rich_help_panel=METHOD)
    ] = None,
    compressed: Annotated[
        str | None,
        typer.Option(
            metavar="float16|bfloat16",
            help="Code of updates on their way to the server, with error feedback (engine ray only).",
            show_default="as they are",
            rich_help_panel=METHOD,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other option that asyncsgd methods lists.", rich_help_panel=METHOD
        ),
    ] = None,
    json: Json = False,
    directory: Annotated[
        Path | None, typer.Option(help="Where it is kept; runs/NAME-1 and so on.", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --directory.", rich_help_panel=RUN)
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Load job.pkl of a directory that another user owns. It is a pickle, which can run any code.",
            rich_help_panel=RUN,
        ),
    ] = False,
    until: Annotated[
        str | None, typer.Option(metavar="CONDITION", help='"accuracy >= 0.95": stop then.', rich_help_panel=RUN)
    ] = None,
    every: Annotated[int | None, typer.Option(help="Iterations between evaluations.", rich_help_panel=RUN)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of every random choice.", show_default="0", rich_help_panel=RUN)
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUN)] = 30.0,
    workers: Annotated[int | None, typer.Option(help="How many.", show_default="4", rich_help_panel=WORKERS)] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="processes|ray", help="Where they run.", show_default="processes", rich_help_panel=WORKERS
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of each worker.", rich_help_panel=WORKERS)] = None,
    slowdown: Annotated[
        str | None, typer.Option(metavar="1,1,1,10", help="Pretend that some are slower.", rich_help_panel=WORKERS)
    ] = None,
    seconds: Annotated[
        str | None, typer.Option(metavar=".1,.1,1", help="Pretend that jobs take so long.", rich_help_panel=WORKERS)
    ] = None,
    max_failures: Annotated[
        int, typer.Option(help="Failures in a row that are too many.", rich_help_panel=WORKERS)
    ] = 3,
    job_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a job is given up.", rich_help_panel=WORKERS)
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds that loading the task may take.", show_default="120", rich_help_panel=WORKERS),
    ] = None,
    address: Annotated[str | None, typer.Option(help="auto, or host:6379.", rich_help_panel=RAY)] = None,
    num_cpus: Annotated[
        float | None, typer.Option(help="Processors of each worker.", show_default="1", rich_help_panel=RAY)
    ] = None,
    num_gpus: Annotated[
        float | None, typer.Option(help="GPUs of each worker.", show_default="0", rich_help_panel=RAY)
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="What else each worker needs.", rich_help_panel=RAY),
    ] = None,
    at_least: Annotated[
        int | None, typer.Option(help="Begin with so many workers.", show_default="all", rich_help_panel=RAY)
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Send the modules in it to the nodes.", rich_help_panel=RAY)
    ] = None,
) -> None:
    """Train with worker processes on this machine, or on a Ray cluster.

    MODULE:TASK names a task, or a function that returns one, as uvicorn names an app.

    Ctrl-C and SIGTERM save and stop; --resume goes on, also after a kill.
    """
    if task is not None and sys.stderr.isatty():
        typer.echo(f"loading {task}", err=True)  # PyTorch takes seconds, and nobody likes to look at nothing
    from asyncsgd.cli import run_commands

    run = run_commands.train(
        task,
        run_commands.Wishes(
            method=method,
            options={
                "stepsize": stepsize,
                "concurrency": concurrency,
                "clip": clip,
                "noise": noise,
                "momentum": momentum,
                "optimizer": optimizer,
                "local_steps": local_steps,
                "local_stepsize": local_stepsize,
                "compressed": compressed,
            },
            settings=set_ or [],
            iterations=iterations,
            until=until,
            directory=directory,
            resume=resume,
            seed=seed,
            every=every,
            checkpoint_seconds=checkpoint_seconds,
            max_failures=max_failures,
            workers=workers,
            slowdown=slowdown,
            seconds=seconds,
            threads=threads,
            job_timeout=job_timeout,
            start_timeout=start_timeout,
            engine_name=engine,
            address=address,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resource or [],
            at_least=at_least,
            working_dir=working_dir,
            trust=trust,
        ),
    )
    run_commands.show(run, as_json=json)
    if run.diverged is not None:
        raise typer.Exit(1)


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples("replay runs/task-1", "replay runs/task-1 --stop 120", "replay runs/task-1 --job 137"),
)
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that you trained in.")],
    stop: Annotated[int | None, typer.Option(help="Look at the update of this iteration.")] = None,
    job: Annotated[int | None, typer.Option(help="Look at the update of this job, also of a rejected one.")] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Load job.pkl of a directory that another user owns. It is a pickle, which can run any code.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Compute a run again in one process: is it the same, bit for bit?

    Exit code 1 if it differs.
    """
    from asyncsgd.cli import run_commands

    if not run_commands.replay(directory, stop, job, as_json=json, trust=trust):
        raise typer.Exit(1)
