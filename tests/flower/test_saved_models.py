"""Files of models under Flower: all arrays of ``initial_arrays``, also those that are not trained."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import record
from flower.serving import QUIET, clients, serve
from flwr.app import ArrayRecord
from safetensors.numpy import load_file

import asyncsgd as asgd
from asyncsgd.core.vectors import Vector
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.task import AbsentUpdates, FlowerTask
from asyncsgd.run import Callback
from asyncsgd.run.callbacks.base import Control, LiveView

MODEL = record(
    **{
        "conv.weight": np.arange(4, dtype=np.float32).reshape(2, 2),
        "bn.weight": np.ones(2, np.float16),
        "bn.running_mean": np.zeros(2, np.float32),
        "bn.running_var": np.ones(2, np.float64),
        "bn.num_batches_tracked": np.array(0),
        "mask": np.array([True, False]),
    }
)


class Best:
    """An ``evaluate_fn`` that is best at one iteration, and keeps every model."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen: dict[int, ArrayRecord] = {}

    def __call__(self, iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        self.seen[iteration] = arrays
        return {"loss": float(abs(iteration - self.at) - self.at)}

    @property
    def model(self) -> ArrayRecord:
        return self.seen[self.at]


def trained(evaluate: Best, iterations: int = 8, **options: Any) -> Any:
    return serve(
        clients(1.0, 2.0, 3.0),
        MODEL,
        asgd.async_sgd(0.3),
        iterations=iterations,
        every=1,
        evaluate=evaluate,
        **QUIET | options,
    )


def assert_same(path: Path, arrays: ArrayRecord) -> None:
    found = load_file(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        values = array.numpy()
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("at", [0, 4, 8])
@pytest.mark.parametrize("given", [False, True])
def test_the_best_model_has_the_arrays_that_were_evaluated(at: int, given: bool, tmp_path: Path) -> None:
    evaluate = Best(at)
    path = tmp_path / "best.safetensors"
    keep = asgd.callbacks.SaveBest("loss", path=path if given else None)
    trained(evaluate, callbacks=[keep], directory=None if given else tmp_path)
    assert (keep.file, keep.iteration) == (path, at)
    assert_same(path, evaluate.model)
    counts = {iteration: int(arrays["bn.num_batches_tracked"].numpy()) for iteration, arrays in evaluate.seen.items()}
    assert counts[0] < counts[4] < counts[8], "else this test shows nothing"


def test_the_best_model_of_a_resumed_run_is_complete_too(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    first, worse, better = Best(2), Best(2), Best(12)
    trained(first, iterations=6, directory=tmp_path, callbacks=[asgd.callbacks.SaveBest("loss")])
    for evaluate, iterations, expected in ((worse, 9, first), (better, 12, better)):
        callbacks = [asgd.callbacks.SaveBest("loss")]
        trained(evaluate, iterations=iterations, directory=tmp_path, resume=True, callbacks=callbacks)
        assert callbacks[0].iteration == (2 if expected is first else 12)
        assert_same(path, expected.model)


def test_a_checkpoint_finds_the_complete_best_model(tmp_path: Path) -> None:
    """A run that is killed after a checkpoint leaves the file that the checkpoint knows of."""
    evaluate, seen = Best(0), []

    class Look(Callback):
        def on_checkpoint(self, view: LiveView, path: Path) -> None:
            if int(path.stem) > 0:
                assert_same(tmp_path / "best.safetensors", evaluate.model)
                seen.append(int(path.stem))

        def on_update(self, view: LiveView, control: Control) -> None:
            if view.iteration == 6:
                raise OSError("the disk is gone")

    callbacks = [asgd.callbacks.SaveBest("loss"), Look()]
    with pytest.raises(OSError, match="the disk is gone"):
        trained(evaluate, directory=tmp_path, callbacks=callbacks, checkpoints=asgd.Checkpoints(every=2))
    assert seen
    assert_same(tmp_path / "best.safetensors", evaluate.model)


@pytest.mark.parametrize("directory", [False, True])
def test_the_model_of_the_run_is_the_model_of_the_result(directory: bool, tmp_path: Path) -> None:
    given = {"directory": tmp_path / "run"} if directory else {}
    run = trained(Best(0), **given)
    assert int(run.arrays["bn.num_batches_tracked"].numpy()) > 0
    assert_same(run.write_model(tmp_path / "model.safetensors"), run.arrays)
    if directory:
        done = trained(Best(0), resume=True, **given)  # finished: no client is asked
        assert done.arrays["bn.num_batches_tracked"].numpy() == run.arrays["bn.num_batches_tracked"].numpy()
        assert_same(done.write_model(tmp_path / "again.safetensors"), run.arrays)


def test_pytorch_loads_the_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    from safetensors.torch import load_file as load_tensors

    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    evaluate, keep = Best(3), asgd.callbacks.SaveBest("loss", path=tmp_path / "best.safetensors")
    model = ArrayRecord(net.state_dict())
    run = serve(
        clients(1.0, 2.0),
        model,
        asgd.async_sgd(0.3),
        iterations=4,
        every=1,
        evaluate=evaluate,
        callbacks=[keep],
        **QUIET,
    )
    state_dict = torch.load(run.write_model(tmp_path / "model.pt"), weights_only=True)
    for found, arrays in ((load_tensors(keep.path), evaluate.model), (state_dict, run.arrays)):
        net.load_state_dict(found)
        for name, values in net.state_dict().items():
            np.testing.assert_array_equal(values.numpy(), arrays[name].numpy(), err_msg=name)


def test_clients_that_answer_during_an_evaluation_do_not_change_its_model() -> None:
    layout = Layout.of(MODEL)
    x, carried = layout.split(MODEL)
    later = {**carried, "bn.num_batches_tracked": np.array(7)}
    pool = SimpleNamespace(carried=carried, evaluates=False, measured=lambda *given: None)
    seen = []

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        seen.append(arrays)
        return {"loss": 1.0}

    task = FlowerTask(layout, x, carried, evaluate, None, AbsentUpdates(), heterogeneous=False, notes=())
    task.bind(pool)  # type: ignore[arg-type]
    task.planned()
    pool.carried = later
    task.evaluate_at(0, x)
    evaluated: Vector = x.copy()
    for name, values in task.named_arrays(evaluated).items():
        np.testing.assert_array_equal(values, MODEL[name].numpy(), err_msg=name)
        np.testing.assert_array_equal(seen[0][name].numpy(), MODEL[name].numpy(), err_msg=name)
    task.keep_carried()
    assert task.named_arrays(x)["bn.num_batches_tracked"] == 7
