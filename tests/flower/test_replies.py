"""Replies that differ from what was sent: dtypes, shapes, names, records beside the model, and partial models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import bench
from flower.fake import Client, FakeGrid, numbers, record, reply, towards
from flower.serving import QUIET, Ear, quiet, serve
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, BadReply
from asyncsgd.core.events import Arrived
from asyncsgd.engines.base import Rejected, Replied
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.flower.arrays import Layout, Part, view
from asyncsgd.run import Callback, LiveView

# ---------------------------------------------------------------------------------------------- dtypes and shapes

REAL = ("float16", "float32", "float64", "int8", "int64", "uint64", "bool")


@given(st.sampled_from(REAL), st.sampled_from(("float16", "float32", "float64")), st.booleans(), st.data())
def test_any_real_dtype_is_converted(sent: str, model: str, bare: bool, data: st.DataObject) -> None:
    """The update is the difference of what NumPy converts; also for a legacy array, which has only its header."""
    if sent == "bool":
        elements: Any = st.booleans()
    elif sent.startswith("f"):
        elements = st.floats(-99, 99, width=int(sent[5:]))
    else:
        elements = st.integers(0, 99)
    values = data.draw(hnp.arrays(sent, hnp.array_shapes(min_dims=0, max_dims=2, max_side=3), elements=elements))
    layout = Layout.of(record(a=np.zeros(values.shape, model)))
    array = Array(values)
    if bare:
        array = Array(dtype="", shape=(), stype="numpy.ndarray", data=array.data)
    update = layout.difference(np.ones(layout.size, layout.dtype), layout.read({"a": array}))
    assert update.dtype == layout.dtype
    np.testing.assert_array_equal(update, 1 - values.reshape(-1).astype(layout.dtype))


@pytest.mark.parametrize(("sent", "model"), [((1,), ()), ((), (1,)), ((1, 1), (1,))])
def test_one_number_may_have_any_shape(sent: tuple[int, ...], model: tuple[int, ...]) -> None:
    assert view("a", Array(np.full(sent, 3.0)), model, np.dtype(float), convert=True).shape == model
    with pytest.raises(BadReply, match="has shape"):
        view("a", Array(np.full(sent, 3.0)), model, np.dtype(float))


def test_two_numbers_may_not() -> None:
    with pytest.raises(BadReply, match=r"has shape \(2, 1\), the model has \(2,\)"):
        view("a", Array(np.zeros((2, 1))), (2,), np.dtype(float), convert=True)


@pytest.mark.parametrize(
    ("dtype", "values", "kept"),
    [
        ("int64", np.array([3.0, 4.4]), [3, 4]),
        ("int64", np.array([True, False]), [1, 0]),
        ("int32", np.array([7, -7]), [7, -7]),
        ("bool", np.array([0.0, 2.0]), [False, True]),
        ("int64", np.array([np.nan, 1.0]), "NaN or infinity"),
        ("int64", np.array([2.0**63, 0.0]), "beyond int64"),
        ("uint8", np.array([-1, 5]), "beyond uint8"),
        ("int32", np.array([2**40, 5]), "beyond int32"),
    ],
)
def test_counts_are_converted_if_they_fit(dtype: str, values: np.ndarray, kept: Any) -> None:
    part = Part("n", values.shape, np.dtype(dtype), None, "whole")
    if isinstance(kept, str):
        with pytest.raises(BadReply, match=kept):
            part.carry(values)
    else:
        assert part.carry(values).tolist() == kept
        assert part.carry(values).dtype == dtype


def test_statistics_that_do_not_fit_are_refused() -> None:
    part = Part("bn.running_mean", (1,), np.dtype("float32"), None, "statistic")
    assert part.carry(np.array([0.5])).dtype == np.float32
    with pytest.raises(BadReply, match="beyond float32"):
        part.carry(np.array([1e300]))


def test_a_run_with_clients_that_widen_every_array() -> None:
    """NumPy makes float64 of float32 as soon as a client computes with Python's numbers."""

    def client(target: float) -> Client:
        def train(message: Message) -> RecordDict:
            sent = {name: numbers(array).astype(float) for name, array in message.content["arrays"].items()}
            return reply(record(**{name: x + 0.5 * (target - x) for name, x in sent.items()}))

        return train

    model = record(
        w=np.zeros((2, 3), np.float32), h=np.zeros(1, np.float16), s=np.array(0.0, np.float32), n=np.array(4)
    )
    grid = FakeGrid([client(target) for target in (1.0, 2.0, 6.0)])
    run = serve(grid, model, asgd.fedavg(1.0, clients=3, ask=3), iterations=12, every=100, **QUIET)
    w = 0.0
    for _ in range(4):
        w = np.mean([w + 0.5 * (target - w) for target in (1.0, 2.0, 6.0)])
    np.testing.assert_allclose(run.arrays["w"].numpy(), w, rtol=1e-6)
    assert {name: str(array.numpy().dtype) for name, array in run.arrays.items()} == {
        "w": "float32",
        "h": "float16",
        "s": "float32",
        "n": "int64",
    }


# ---------------------------------------------------------------------------------------------- names and records


def test_numbers_in_place_of_names_are_matched_by_order() -> None:
    layout = Layout.of(record(b=np.zeros(2), a=np.zeros(3)))
    given = {"0": Array(np.ones(2)), "1": Array(np.full(3, 2.0))}
    assert layout.gather(layout.read(given)).tolist() == [1, 1, 2, 2, 2]
    numbered = Layout.of(ArrayRecord([np.zeros(2), np.zeros(3)]))
    named = record(weight=np.ones(2), bias=np.full(3, 2.0))
    assert numbered.gather(numbered.read(named)).tolist() == [1, 1, 2, 2, 2]
    with pytest.raises(BadReply, match="'b' is missing, 4 in all"):
        layout.read(record(x=np.ones(2), y=np.ones(3)))  # two names that both mean something else


MODEL = {"w": np.ones((2, 2), np.float32), "n": np.array(1)}
OTHER = record(v=np.zeros(3))
METRICS = MetricRecord({"num-examples": 3})


@pytest.mark.parametrize(
    "content",
    [
        {"anything": record(**MODEL), "metrics": METRICS},
        {"arrays": record(**MODEL), "state": OTHER, "metrics": METRICS},
        {"arrays": record(**MODEL), "copy": record(**MODEL), "metrics": METRICS},
        {"state": OTHER, "model": record(**MODEL), "metrics": METRICS},
        {"model": record(**MODEL, v=np.zeros(3)), "metrics": METRICS},
        {"model": record(**MODEL), "a": METRICS, "b": MetricRecord({"per class": [0.5, 1.0]}), "c": ConfigRecord({})},
    ],
)
def test_the_model_is_found_among_other_records(content: dict[str, Any]) -> None:
    with bench(lambda m: RecordDict(content)) as here:
        assert here.expect(Arrived, job=here.give(0)).update.tolist() == [-1.0] * 4
        [said] = here.of(Replied)
        model = "arrays" if "arrays" in content else next(name for name in content if name in ("anything", "model"))
        assert list(said.records()) == [name for name in content if name != model]


@pytest.mark.parametrize("extra", [{}, {"arrays": record(w=np.full((2, 2), 7.0, np.float32), n=np.array(7))}])
def test_the_model_has_the_name_under_which_it_was_sent(extra: dict[str, Any]) -> None:
    """Also if another record has the name that Flower's own strategies use."""

    def client(message: Message) -> RecordDict:
        [sent] = message.content.array_records
        return RecordDict({**extra, sent: record(w=np.ones(2)), "metrics": METRICS})

    strategy = AsyncStrategy(asgd.fedavg(clients=2), arrayrecord_key="model", fraction_evaluate=0.0, progress=False)
    result = strategy.start(FakeGrid([client, client]), record(w=np.zeros(2)), num_rounds=1)
    assert result.arrays["w"].numpy().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": record(**MODEL), "b": record(**MODEL)}, "has 2 sets of arrays, and 2 of them fit the model; name"),
        ({"a": OTHER, "b": OTHER}, "has 2 sets of arrays, and 0 of them fit the model; name"),
        ({"arrays": OTHER, "b": record(**MODEL)}, "'w' is missing"),
    ],
)
def test_an_ambiguous_reply_is_refused(content: dict[str, Any], words: str) -> None:
    with bench(lambda m: RecordDict(content)) as here:
        assert words in here.expect(Rejected, job=here.give(0)).reason


# ---------------------------------------------------------------------------------------------- the hook


class Replies(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str, Any]] = []

    def on_reply(self, view: LiveView, worker: int, kind: str, records: Any) -> None:
        self.seen.append((view.iteration, worker, kind, records))


def test_callbacks_see_what_replies_contain_beside_the_model() -> None:
    def client(message: Message) -> RecordDict:
        content = towards(1.0)(message)
        content["state"] = record(c=np.full(2, 7.0))
        content["device"] = ConfigRecord({"name": "phone"})
        return content

    ears = Replies()
    run = serve(
        FakeGrid([client, client]),
        record(w=np.zeros(2)),
        asgd.async_sgd(0.2),
        iterations=6,
        every=3,
        evaluate_clients=True,
        callbacks=[ears],
        **QUIET,
    )
    trained = [seen for seen in ears.seen if seen[2] == "train"]
    assert [iteration for iteration, *_ in trained][:6] == list(range(6))  # each before its update is applied
    assert [worker for _, worker, *_ in trained][:6] == run.trace.worker.tolist()
    for _, _, _, records in trained:
        assert set(records) == {"metrics", "state", "device"}
        assert records["state"]["c"].numpy().tolist() == [7.0, 7.0]
    evaluated = [records for _, _, kind, records in ears.seen if kind == "evaluate"]
    rows = [row for row in run.round_metrics if row["kind"] == "evaluate"]
    assert len(evaluated) == sum(row["replies"] for row in rows) >= 4  # the last ones too
    assert all(records["device"]["name"] == "phone" for records in evaluated)
    assert {row["name"] for row in run.client_metrics} == {""}  # the device's name is not the client's


def test_an_error_in_the_hook_names_it() -> None:
    class Breaks(Callback):
        def on_reply(self, view: LiveView, worker: int, kind: str, records: Any) -> None:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        serve(
            FakeGrid([towards(1.0), towards(2.0)]),
            record(w=np.zeros(2)),
            asgd.async_sgd(0.2),
            iterations=6,
            callbacks=[Breaks()],
            **QUIET,
        )
    assert caught.value.__notes__[0] == "raised in on_reply of the callback Breaks"


# ---------------------------------------------------------------------------------------------- partial models

PARTIAL = {
    "body.weight": np.zeros((2, 2), np.float32),
    "head.weight": np.full(3, 5.0, np.float32),
    "body.running_var": np.ones(2, np.float32),
    "head.count": np.array(0),
}


@pytest.mark.parametrize("returns_all", [False, True])
@pytest.mark.parametrize("shared", ["body.*", ["body.w*", "*.running_var"]])
def test_personal_layers_stay_on_the_clients(shared: Any, returns_all: bool) -> None:
    """FedPer: the server neither sends nor uses the head, also if a client returns it."""
    seen: list[set[str]] = []

    def client(target: float) -> Client:
        inner = towards(target)

        def train(message: Message) -> RecordDict:
            seen.append(set(message.content["arrays"]))
            content = inner(message)
            if returns_all and "arrays" in content:
                content["arrays"]["head.weight"] = Array(np.full(7, target))  # even of another shape
            return content

        return train

    grid, ear = FakeGrid([client(1.0), client(3.0)]), Ear()
    measured: list[set[str]] = []
    run = serve(
        grid,
        record(**PARTIAL),
        asgd.fedavg(1.0, clients=2, ask=2),
        iterations=40,
        evaluate=lambda iteration, arrays: measured.append(set(arrays)),
        evaluate_clients=True,
        callbacks=[ear],
        **quiet(shared=shared),
    )
    body = {"body.weight", "body.running_var"}
    assert set(map(frozenset, seen)) == {frozenset(body)}
    assert set(map(frozenset, measured)) == {frozenset(body)}
    assert set(run.arrays) == body
    np.testing.assert_allclose(run.arrays["body.weight"].numpy(), 2.0, rtol=1e-3)


def test_a_shared_array_that_is_missing_is_refused() -> None:
    def client(message: Message) -> RecordDict:
        return reply(record(**{"head.weight": np.zeros(3)}))

    with bench(client) as here:
        assert "'w' is missing" in here.expect(Rejected, job=here.give(0)).reason


def test_patterns_that_match_nothing_are_named() -> None:
    with pytest.raises(
        BadParameter, match=r"shared = \['tail\.\*'\] matches no array of the model; pass patterns .*body"
    ):
        Layout.of(record(**PARTIAL), shared=["tail.*"])
    with pytest.raises(BadParameter, match="have no array to train"):
        Layout.of(record(**PARTIAL), shared=["head.count"])
    for wrong in ("", [], [3]):
        with pytest.raises(BadParameter, match=r"shared = .* is not a list of patterns"):
            Clients(shared=wrong)  # type: ignore[arg-type]
