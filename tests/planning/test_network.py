"""Plans for workers behind a network: local steps, compression, and how soon a mini-batch is done."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli import app
from asyncsgd.core.errors import BadParameter
from asyncsgd.planning import seconds_per_update
from asyncsgd.planning.network import CODES, STEPS, Option, choose

FAR = asgd.durations.fixed([1.0] * 4).with_network(100e6, latency=0.1)
BIG = 10**8


@pytest.fixture(scope="module")
def far() -> asgd.Plan:
    return asgd.plan(FAR, parameters=BIG, concurrency=4)


def test_every_option_takes_the_time_of_its_computing_and_of_its_messages(far: asgd.Plan) -> None:
    """Four equal workers in rounds: a round of H steps takes down + H + up, and has 4 H mini-batches."""
    assert far.recommended.candidate.rounds
    assert far.network is not None
    for option in far.network.options:
        method = asgd.minibatch_sgd(1.0)
        if option.code is not None:
            method = method.compressed(option.code, down="bfloat16")
        up, down = method.message_bytes(BIG, "float32")
        messages = 2 * 0.1 + 8 * (up + down) / 100e6
        assert option.seconds == pytest.approx((option.steps + messages) / (4 * option.steps))
        assert option.communication == pytest.approx(messages / (option.steps + messages))
        assert option.bytes_per_batch == (up + down) / option.steps


def test_the_chosen_option_is_the_mildest_with_little_communication(far: asgd.Plan) -> None:
    assert far.network is not None
    chosen = far.network.chosen
    assert chosen.small
    assert not far.network.at(STEPS[STEPS.index(chosen.steps) - 1], chosen.code).small
    assert far.network.plain.seconds / chosen.seconds == far.network.sooner > 10
    assert f"take {chosen.steps} local steps" in far.network.sentence.lower()
    assert "cost quality" in far.network.sentence


def option(steps: int, code: str | None, share: float) -> Option:
    return Option(steps, code, seconds=1 / (1 - share), communication=share, bytes_per_batch=1.0)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({(1, None): 0.05, (50, "int8"): 0.01}, (1, None)),
        ({(50, None): 0.09, (20, "int8"): 0.05}, (50, None)),  # a lighter code before fewer steps, up to 50
        ({(200, None): 0.05, (100, "int4"): 0.05, (50, "top_k"): 0.01}, (100, "int4")),  # then fewer steps
        ({(500, "int4"): 0.3, (50, "top_k"): 0.05, (20, "top_k"): 0.2}, (50, "top_k")),  # top-k at last
        ({(500, "int4"): 0.6, (500, "top_k"): 0.5}, (500, "top_k")),  # never small: the fastest
    ],
)
def test_choose(shares: dict[tuple[int, str | None], float], expected: tuple[int, str | None]) -> None:
    found = choose([option(*key, share) for key, share in shares.items()])
    assert (found.steps, found.code) == expected


def test_a_fast_network_needs_neither_local_steps_nor_a_code() -> None:
    found = asgd.plan(asgd.durations.fixed([1.0] * 4).with_network(10e9), parameters=10**6, concurrency=4)
    assert found.network is not None
    assert found.network.chosen is found.network.plain
    assert found.network.chosen.recipe == ""
    assert "Send every gradient as it is" in found.network.sentence


def test_rounds_that_wait_for_slow_workers_are_compared_with_asynchronous_sgd() -> None:
    fleet = asgd.durations.fixed([1.0, 1.0, 1.0, 4.0]).with_network(100e6)
    found = asgd.plan(fleet, parameters=BIG, concurrency=4)
    assert found.network is not None
    assert found.recommended.candidate.rounds  # messages take so long that waiting for the slow worker hardly matters
    assert found.network.asynchronous is not None
    assert found.network.asynchronous < 0.6 * found.network.chosen.seconds
    assert "With asynchronous SGD on all workers in place of rounds" in found.network.sentence


def test_the_terminal_the_page_and_json_show_the_same(far: asgd.Plan, tmp_path: Path) -> None:
    from rich.console import Console

    assert far.network is not None
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(far)
    text, page = console.export_text(), far.write_page(tmp_path / "plan.html").read_text("utf-8")
    headings, rows, _ = far.network.table()
    for word in (*headings, *rows[-1], "local steps per job"):
        assert word in text
        assert word in page
    stored = json.loads(json.dumps(far.to_dict(), allow_nan=False))["network"]
    assert len(stored["options"]) == len(STEPS) * len(CODES)
    assert stored["options"][stored["chosen"]]["small"]
    assert stored["advice"] == far.network.sentence
    assert far.network.sentence.split(":")[0] in page


def test_a_plan_without_a_network_has_none() -> None:
    assert asgd.plan([1.0, 2.0]).network is None
    assert asgd.plan([1.0, 2.0]).to_dict()["network"] is None


@pytest.mark.parametrize(
    ("durations", "parameters", "words"),
    [
        (FAR, None, "parameters is missing: over a network, times depend on the model's size"),
        (FAR, 0, "parameters = 0"),
        ([1.0, 2.0], 100, "parameters = 100 has no meaning without a network"),
    ],
)
def test_what_a_network_needs(durations: object, parameters: int | None, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        asgd.plan(durations, parameters=parameters)  # type: ignore[arg-type]


def test_the_command_line(tmp_path: Path) -> None:
    table = tmp_path / "seconds.csv"
    table.write_text("a,b,c\n1.0,1.0,1.0\n1.1,0.9,1.2\n")
    options = ["--bandwidth", "100e6", "--latency", "0.1", "--parameters", "100000000", "--no-page", "--json"]
    result = CliRunner().invoke(app, ["plan", str(table), *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["source"] == "seconds.csv"
    assert found["network"]["sooner"] > 10
    result = CliRunner().invoke(app, ["plan", str(table), "--latency", "0.1", "--no-page"])
    assert isinstance(result.exception, BadParameter)


# --------------------------------------------------------------------------------------------------- prediction


def test_predictions_by_hand() -> None:
    speeds = [1.0, 3.0]
    assert seconds_per_update(asgd.minibatch_sgd(1.0), speeds) == pytest.approx(1.5)
    assert seconds_per_update(asgd.minibatch_sgd(1.0).local(10, 0.1), speeds) == pytest.approx(15.0)
    assert seconds_per_update(asgd.async_sgd(1.0), speeds) == pytest.approx(0.75, rel=0.01)
    assert seconds_per_update(asgd.async_sgd(1.0).local(6, 0.1, per_worker=[6, 2]), speeds) == pytest.approx(3.0)
    chosen = asgd.fedavg(1.0, clients=1, ask=2)
    assert seconds_per_update(chosen, asgd.durations.fixed(speeds)) == pytest.approx(1.0)


def test_steps_by_speed_are_predicted_too() -> None:
    """DyLU: workers of 1 s and 3 s per step take 12 and 4 steps, so that both answer every 12 s."""
    method = asgd.async_sgd(1.0).local(12, 0.1, per_worker="speed")
    assert seconds_per_update(method, [1.0, 3.0]) == pytest.approx(6.0, rel=0.01)


def test_a_prediction_over_a_network_needs_the_size_of_the_model() -> None:
    with pytest.raises(BadParameter, match="parameters is missing"):
        seconds_per_update(asgd.async_sgd(1.0), FAR)
    one = asgd.async_sgd(1.0).compressed("int8", down="bfloat16")
    predicted = seconds_per_update(one, FAR, parameters=256 * 100)
    assert predicted == pytest.approx((1.0 + 0.2 + 8 * (260 * 100 + 512 * 100) / 100e6) / 4)


def test_a_simulated_run_takes_the_predicted_time() -> None:
    method = asgd.async_sgd(0.01).local(5, 0.01)
    fleet = asgd.durations.lognormal([1.0, 1.5, 4.0], sigma=0.3).with_communication(down=0.5, up=0.5)
    run = asgd.simulate(asgd.tasks.quadratic(workers=3), method, fleet, iterations=3000, seed=5)
    measured = float(np.diff(run.trace.time[[500, -1]])[0]) / (len(run.trace.time) - 501)
    assert seconds_per_update(method, fleet) == pytest.approx(measured, rel=0.05)
