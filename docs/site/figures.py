"""Make tables of measured figures from each benchmark's `results.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, median
from typing import Any

MARK = re.compile(r"<!-- figures: (\w+) -->")


def filled(page: str, benchmarks: Path) -> str:
    """Return the page with a table in place of each ``<!-- figures: NAME -->``."""
    return MARK.sub(lambda mark: table(mark[1], benchmarks / mark[1] / "results.json"), page)


def table(name: str, results: Path) -> str:
    """Return the table of a benchmark, with the machine that it was measured on."""
    if not results.exists():
        return f"*Not measured yet: run `make bench-{name}`.*"
    figures = json.loads(results.read_text(encoding="utf-8"))
    if name == "federated":
        return "\n".join(_federated(figures))
    if name == "trainer":
        return "\n".join(_trainer(figures))
    machine = figures["machine"]
    rounds = figures["rounds"]
    often = " / ".join(f"{n} ({part})" for part, n in rounds.items()) if isinstance(rounds, dict) else rounds
    measured = f"Median of {often} rounds on {machine['cores']} cores ({machine['machine']}).\n"
    drawn = {"simulate": _simulate, "engines": _engines, "flower": _flower, "peers": _peers}[name](figures)
    return "\n".join([*drawn, "", measured])


def _simulate(figures: dict[str, Any]) -> list[str]:
    """Return a table of speed-ups over an alternative, then a table of the other numbers."""
    compared, alone = ["| | compared with | times as fast |", "|---|---|--:|"], ["| | |", "|---|--:|"]
    for part in figures.values():
        for what, value in part.items() if isinstance(part, dict) else ():
            if isinstance(value, list):
                what = re.sub(r" \(at (most|least) [^)]*\)", "", what).replace("10^6", "10⁶").replace("10^3", "10³")
                what = what.replace("10^7", "10⁷")
                (compared if " / " in what else alone).append(f"| {what.replace(' / ', ' | ')} | {_short(value[0])} |")
    return [*compared, "", *alone]


def _engines(figures: dict[str, Any]) -> list[str]:
    rows: list[str] = []
    titles = {
        "updates": "Updates of a constant gradient, as a share of those of a bare `torch.add` loop on one core",
        "efficiency": "Gradients of a perceptron, as a share of those of the same workers without any server",
    }
    for part, title in titles.items():
        if part not in figures:
            continue
        sizes = figures[part]
        names = [name for name, value in next(iter(sizes.values())).items() if isinstance(value, dict)]
        rows += [f"{title}:", "", "| | " + " | ".join(f"{int(size):,} parameters" for size in sizes) + " |"]
        rows += ["|---|" + "--:|" * len(sizes)]
        for name in names:
            shares = [f"{sizes[size][name]['ratio']:.0%}" if name in sizes[size] else "–" for size in sizes]
            rows.append(f"| {name} | " + " | ".join(shares) + " |")
        rows.append("")
    for what, value in figures.get("replacement", {}).items():
        if what != "wanted_seconds":
            rows.append(f"- {value:.2g} s: {what.removeprefix('seconds_').replace('_', ' ')}")
    return rows


def _flower(figures: dict[str, Any]) -> list[str]:
    """Return tables of CPU seconds and wall-clock seconds of the server per update."""
    rows: list[str] = []
    titles = {
        "server": "the server alone: replies are available at once",
        "simulation": "the simulation engine, two clients that compute nothing",
        "deployment": "a SuperLink and two SuperNodes on one machine, with clients that compute nothing",
    }
    for part, title in titles.items():
        if part in figures:
            sizes = figures[part]
            rows += [f"Per update, {title}:", ""]
            rows += ["| CPU, wall clock | " + " | ".join(f"{int(size):,} parameters" for size in sizes) + " |"]
            rows += ["|---|" + "--:|" * len(sizes)]
            for name in next(iter(sizes.values())):
                cells = [f"{_time(row[name]['processor'])}, {_time(row[name]['seconds'])}" for row in sizes.values()]
                rows.append(f"| {name} | " + " | ".join(cells) + " |")
            rows.append("")
    return rows


def _peers(figures: dict[str, Any]) -> list[str]:
    """Return a table of seconds per 1000 updates, and of the speed-up over the peer."""
    rows = ["| | seconds per 1000 updates | times as fast |", "|---|--:|--:|"]
    for name, seconds in figures["seconds per 1000 updates"].items():
        fast = figures["times as fast as FLGo"].get(name)
        rows.append(f"| {name} | {seconds:.2g} | {'–' if fast is None else _short(fast)} |")
    return rows


def _federated(figures: dict[str, Any]) -> list[str]:
    """Return a table of times to both accuracies, and of the errors of the predictions."""
    found = figures["accuracy"]["contestants"]
    levels = list(next(iter(found.values())))
    heads = [f"time to {level} of the optimum's accuracy | times as soon as FedAvg" for level in levels]
    rows = ["| | " + " | ".join(heads) + " | updates per unit of time |", "|---|" + "--:|" * (2 * len(levels) + 1)]
    for name, row in found.items():
        cells = []
        for level in levels:
            sooner = row[level]["times as soon as FedAvg"]
            middle = median(float("inf") if value is None else value for value in row[level]["times"])
            cells.append("not reached" if middle == float("inf") else _short(middle))
            cells.append(f"{median(sooner):.2g} ({sooner[0]:.2g} to {sooner[-1]:.2g})")
        rows.append(f"| {name} | {' | '.join(cells)} | {_short(row[levels[-1]]['updates per unit of time'])} |")
    rows += ["", f"Medians over {figures['accuracy']['seeds']} seeds, with the least and the largest ratio.", ""]
    if "flower" in figures:
        real = figures["flower"]["contestants"]
        pairs = (f"{name} {_sooner(median(row['times as soon as FedAvg']))}" for name, row in real.items())
        what = "In Flower's simulation, in real time, to the lower accuracy, times as soon as FedAvg"
        rows += [f"{what}: {'; '.join(pairs)}.", ""]
    if "when" in figures:
        rows += [*_settings(figures["when"]), ""]
    if "apps" in figures:
        rows += [*_apps(figures["apps"]), ""]
    if "prediction" in figures:
        part = figures["prediction"]
        rows += [
            f"{part['clients']:,} clients in Flower's simulation: the simulator's prediction of the time per update "
            f"from a pilot was wrong by at most {part['worst error']:.1%}; our target is {part['goal']:.0%}.",
            "",
        ]
    return rows


def _settings(part: dict[str, Any]) -> list[str]:
    """Return a table of how many times as soon as FedAvg methods are, by the number of slow clients and the split."""
    names = list(part["settings"][0]["times as soon as FedAvg"])
    what = f"Times as soon as FedAvg to {part['level']:.0%} in other settings, medians over {part['seeds']} seeds"
    rows = [f"{what}:", "", "| data | slow clients | " + " | ".join(names) + " |", "|---|---|" + "--:|" * len(names)]
    for row in part["settings"]:
        slow = f"{row['slow']} of {row['clients']}, {row['factor']:g} times" if row["slow"] else "none"
        cells = [_sooner(median(row["times as soon as FedAvg"][name])) for name in names]
        rows.append(f"| {row['split'].replace('dirichlet', 'Dirichlet')} | {slow} | {' | '.join(cells)} |")
    return rows


def _apps(part: dict[str, Any]) -> list[str]:
    """Return a table of Flower apps with both servers beside a slow client."""
    setting = part["setting"]
    rows = [
        f"Flower apps in Flower's simulation, in real time: {setting['clients']} clients with alike data, one of which "
        f"waits {setting['seconds of the slow client']:g} s after each training, with FedAvg and with Algorithm 2 and "
        "one job per client:",
        "",
        "| app | accuracy at the end, FedAvg | asynchronous | seconds to FedAvg's less 1 %, FedAvg | asynchronous "
        "| updates of the slow client |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, row in part["apps"].items():
        both = [row["FedAvg"], row["asynchronous"]]
        cells = [f"{median(one['accuracy at the end']):.1%}" for one in both]
        seconds = (
            [float("inf") if value is None else value for value in one["seconds to FedAvg's accuracy less 1 %"]]
            for one in both
        )
        cells += [f"{median(values):.2g}" for values in seconds]
        slow = [f"{some} of {whole}" for some, whole in row["updates of the slow client, of all"]]
        rows.append(f"| {name} | {' | '.join(cells)} | {', '.join(slow)} |")
    return rows


def _sooner(ratio: float) -> str:
    """Return how many times as soon as another a contestant was; 0 stands for one that did not get there."""
    return _short(ratio) if ratio > 0 else "not reached"


def _trainer(figures: dict[str, Any]) -> list[str]:
    """Return a table per part of the trainer's benchmark, each with its rounds and its machine."""
    rows: list[str] = []
    drawn = {
        "fashion": _fashion,
        "tokens": _tokens,
        "language": _language,
        "optimizers": _optimizers,
        "memory": _memory,
    }
    for part, draw in drawn.items():
        if part in figures:
            machine = figures[part]["machine"]
            rows += draw(figures[part])
            times = "seeds" if "seeds" in figures[part] else "rounds"
            rows += ["", f"{figures[part][times]} {times} on {machine['cores']} cores ({machine['machine']}).", ""]
    return rows


def _sizes(part: dict[str, Any]) -> dict[str, Any]:
    return {size: row for size, row in sorted(part.items(), key=lambda item: item[0].zfill(12)) if size.isdigit()}


def _fashion(part: dict[str, Any]) -> list[str]:
    heads = "gradients per second over DDP | our target | seconds to 86 % | with DDP"
    rows = ["Fashion-MNIST, two workers, beside DistributedDataParallel over gloo:", ""]
    rows += [f"| model, slowest worker | {heads} |", "|---|--:|--:|--:|--:|"]
    for name, row in part.items():
        if isinstance(row, dict) and "seconds_to_accuracy" in row:
            best = [min(row["seconds_to_accuracy"][side].values()) for side in ("asyncsgd", "ddp")]
            cells = [row["gradients_per_second_over_ddp"], row["wanted"], *best]
            rows.append(f"| {name} | " + " | ".join(f"{cell:.2g}" for cell in cells) + " |")
    return rows


def _tokens(part: dict[str, Any]) -> list[str]:
    return [
        "The GPT of `examples/language_model.py` with two workers, tokens per second over those of the same processes "
        f"without a server: {part['tokens_per_second_over_no_server']:.2f}; our target is {part['wanted_speed']}.",
    ]


def _language(part: dict[str, Any]) -> list[str]:
    sizes = _sizes(part)
    heads = [f"{int(rows):,} rows, {row['iterations']:,} updates | asynchronous over it" for rows, row in sizes.items()]
    rows = [
        "The held-out loss of the same GPT after equal tokens, mean over the seeds. The peak of the step size and "
        "AdamW's β1 are the best of each row, tried on one seed. "
        f"Our target is {part['wanted_loss']} times a synchronous loop's:",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---|" + "--:|--:|" * len(sizes),
    ]
    for name in next(iter(sizes.values()))["losses"]:
        cells = [f"{mean(row['losses'][name]):.3f} | {row['loss_over'][name]:.3f}" for row in sizes.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _optimizers(part: dict[str, Any]) -> list[str]:
    sizes = _sizes(part)
    rows = ["Time of one update of the server, over one step of `torch.optim.AdamW(foreach=True)`:", ""]
    rows += ["| | " + " | ".join(f"{int(size):,} parameters" for size in sizes) + " |", "|---|" + "--:|" * len(sizes)]
    for name, value in next(iter(sizes.values())).items():
        if isinstance(value, dict):
            rows.append(f"| {name} | " + " | ".join(f"{row[name]['of_torch']:.2f}" for row in sizes.values()) + " |")
    return rows


def _memory(part: dict[str, Any]) -> list[str]:
    rows = ["Memory of the server in copies of the model, and how long a checkpoint stops the updates:", ""]
    rows += ["| parameters, contestant | between checkpoints | at most | stall | of the time of a checkpoint |"]
    rows += ["|---|--:|--:|--:|--:|"]
    for size, row in _sizes(part).items():
        memory, stall = row.get("memory", {}), row.get("stall", {})
        for name in dict.fromkeys((*memory, *stall)):
            cells = [f"{memory[name][key]:.1f}" if name in memory else "–" for key in ("steady", "peak")]
            cells += [_time(stall[name]["background"]), f"{stall[name]['ratio']:.0%}"] if name in stall else ["–", "–"]
            rows.append(f"| {int(size):,}, {name} | " + " | ".join(cells) + " |")
    return rows


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2g} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 20 or value == int(value) else f"{value:.2g}"
