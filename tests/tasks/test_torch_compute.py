"""How a torch task computes: half precision, compiled models, devices, loading threads."""

import copy
import random
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from tasks.torch_zoo import RowByRow, digits, flat, small_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks._torch import checks, compute, devices
from asyncsgd.tasks._torch.batches import Loader
from asyncsgd.tasks._torch.data import DatasetRows
from asyncsgd.tasks._torch.devices import Staging
from asyncsgd.tasks._torch.model import FlatModel


@pytest.fixture(autouse=True)
def _any_precision_is_fast_here(monkeypatch):
    monkeypatch.setattr(checks, "cpu_computes_in", lambda precision: True)


def task_of(model=None, **options):
    return asgd.tasks.torch(model or small_model(), nn.CrossEntropyLoss(), digits(), batch_size=8, **options)


# ---------------------------------------------------------------------------------------------- half precision


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_near_and_repeatable(precision):
    exact = task_of()
    task = task_of(small_model(nn.Dropout(0.2)), precision=precision, accumulate=2)
    asgd.tasks.check_task(task)
    task = task_of(precision=precision)
    x = task.initial()
    update = task.update(x, 0, 3)
    assert update.dtype == np.float32
    expected = exact.update(x, 0, 3)
    assert not np.array_equal(update, expected)
    assert np.linalg.norm(update - expected) < 0.02 * np.linalg.norm(expected)
    assert task.evaluate(x) == exact.evaluate(x)  # without autocast


class Steep(nn.Module):
    """float16 ends at 65504, which a gradient times the largest scale exceeds."""

    def __init__(self, slope):
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)
        self.dropout, self.slope = nn.Dropout(0.3), slope
        nn.init.ones_(self.layer.weight)

    def forward(self, batch):
        return self.layer(self.dropout(batch)) * self.slope


def steep(slope, precision):
    data = (np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32))
    return asgd.tasks.torch(Steep(slope), lambda out, target: (out.float() - target).mean(), data, precision=precision)


@pytest.mark.parametrize("slope", [1e-4, 0.01, 500.0])
def test_a_scale_that_overflows_is_reduced_with_the_same_dropout(slope, monkeypatch):
    scales = []
    plain = compute._gradient

    def watched(model, objective, batch, precision, scale=1.0):
        scales.append(scale)
        return plain(model, objective, batch, precision, scale)

    monkeypatch.setattr(compute, "_gradient", watched)
    task, exact = steep(slope, "float16"), steep(slope, "float32")
    x = task.initial()
    scales.clear()
    update = task.update(x, 0, 1)
    assert scales == [compute.LARGEST_SCALE * compute.SHRINK**k for k in range(len(scales))]
    assert (len(scales) > 1) == (slope == 500.0)
    assert np.all(update)  # without scaling, 1e-4 of a row's share would be lost
    np.testing.assert_allclose(update, exact.update(x, 0, 1), rtol=2e-3)
    scales.clear()
    assert np.array_equal(task.update(x, 0, 1), update)
    assert scales[0] == compute.LARGEST_SCALE  # every job begins anew
    asgd.tasks.check_task(task)


def test_a_gradient_that_is_not_finite_at_any_scale_is_returned_for_the_server_to_reject():
    task = steep(float("nan"), "float16")
    assert not np.isfinite(task.update(task.initial(), 0, 1)).all()


def test_micro_batches_of_a_job_keep_the_scale_that_worked(monkeypatch):
    scales = []
    plain = compute._scaled_gradient

    def watched(model, objective, batch, scale):
        scales.append(scale)
        return plain(model, objective, batch, scale)

    monkeypatch.setattr(compute, "_scaled_gradient", watched)
    data = (np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32))
    loss = lambda out, target: (out.float() - target).mean()  # noqa: E731
    task = asgd.tasks.torch(Steep(500.0), loss, data, precision="float16", batch_size=4, accumulate=2)
    task.update(task.initial(), 0, 1)
    assert scales[0] == compute.LARGEST_SCALE
    assert scales[1] < scales[0]


def test_a_precision_that_this_machine_only_imitates_is_warned_of(monkeypatch):
    monkeypatch.setattr(checks, "cpu_computes_in", lambda precision: False)
    with pytest.warns(UserWarning, match=r'precision = "bfloat16".*no instructions for bfloat16.*15 times') as caught:
        task_of(precision="bfloat16")
    assert caught[0].filename == __file__
    monkeypatch.setattr(checks, "has_accelerator", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task_of(precision="bfloat16")
        task_of()
    with pytest.raises(BadParameter, match=r"precision = 'bfloat16' needs a model in float32.*float64"):
        task_of(small_model().double(), precision="bfloat16")


def test_what_a_cpu_computes_in_is_asked_of_torch(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not devices.cpu_computes_in("bfloat16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert (devices.cpu_computes_in("bfloat16"), devices.cpu_computes_in("float16")) == (True, False)


# ---------------------------------------------------------------------------------------------- compiled models


COMPILED = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from torch import nn
import asyncsgd as asgd
torch.manual_seed(0)
data = (np.random.default_rng(0).normal(size=(40, 8)), np.arange(40) % 3)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
tasks = [asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, compile=on, accumulate=2) for on in (True, False)]
x = tasks[0].initial()
first, again, other = (tasks[0].update(x, 0, seed) for seed in (1, 1, 2))
assert np.array_equal(first, again) and not np.array_equal(first, other)
nothing = [asgd.tasks.torch(model.eval(), nn.CrossEntropyLoss(), data, compile=on) for on in (True, False)]
assert tasks[0].evaluate(x) == tasks[1].evaluate(x)
model[2].p = 0.0
sure = [asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, compile=on, batch_size=4) for on in (True, False)]
np.testing.assert_allclose(*(task.update(x, 0, 3) for task in sure), rtol=1e-4, atol=1e-6)
print("same")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.skipif(" " in sys.prefix, reason="PyTorch gives the linker a path with a space as two")
def test_a_compiled_model_gives_the_same_gradient():
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, encoding="utf-8", check=False, timeout=500
    )
    assert done.stdout == "same\n", done.stderr


def test_without_a_compiler_the_error_comes_before_a_worker_starts(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadParameter, match=r"compile = True needs a C\+\+ compiler.*g\+\+.*compile=False"):
        task_of(compile=True)
    monkeypatch.setenv("CXX", "mine++ -O2")
    with pytest.raises(BadParameter, match=r"none of mine\+\+ -O2 is installed"):
        task_of(compile=True)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(checks.sysconfig, "get_path", lambda name: "/nowhere")
    with pytest.raises(BadParameter, match=r"compile = True needs the headers of Python"):
        task_of(compile=True)


# ---------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", 'device = \'gpu\' is not the name of a device; pass "cpu", "cuda"'),
        (7.5, "device = 7.5 is not the name of a device"),
        ("cuda", "device = 'cuda' is not available: this PyTorch was built without CUDA; pass \"cpu\""),
        ("cuda:1", "device = 'cuda:1' is not available"),
        ("mps", "device = 'mps' is not available: PyTorch finds no such device here"),
        ("fpga", "device = 'fpga' is "),
    ],
)
def test_a_device_that_is_not_here_is_named(name, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    task = task_of()
    with pytest.raises(BadParameter, match=says):
        task.use_device(name)
    assert task.device == "cpu"


def test_devices_are_numbered_from_0(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve("cuda:1") == torch.device("cuda", 1)
    assert devices.resolve("cuda") == torch.device("cuda")
    with pytest.raises(BadParameter, match=r'cuda:2.*there are 2 here.*CUDA_VISIBLE_DEVICES.*"cuda:0" to "cuda:1"'):
        devices.resolve("cuda:2")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.resolve("mps").type == "mps"
    wide = task_of(small_model().double())
    with pytest.raises(BadParameter, match="device = 'mps' has no float64"):
        wide.use_device("mps")


def test_the_device_of_a_process_is_not_sent_to_another():
    import cloudpickle

    task = task_of()
    x = task.initial()
    expected = task.update(x, 0, 1)
    task.use_device("meta")
    assert task.device == "meta"
    assert cloudpickle.loads(cloudpickle.dumps(task)).device == "cpu"
    assert copy.copy(task).device == "meta"
    assert copy.copy(task)._ready() is not task._ready()
    with pytest.raises(BadParameter, match="device = 'meta' has no numbers to return"):
        task.update(x, 0, 1)
    task.use_device("cpu")
    assert np.array_equal(task.update(x, 0, 1), expected)


class Copies(TorchDispatchMode):
    """Counts copies between the host's vector and the vectors that stand for those of a device."""

    def __init__(self, staging):
        super().__init__()
        self.there = {tensor.data_ptr() for tensor in (staging.flat, staging.gradient)}
        self.length, self.seen = len(staging.flat), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default and args[0].numel() == self.length:
            to, source = (tensor.data_ptr() in self.there for tensor in args[:2])
            self.seen.append({(True, False): "to", (False, True): "off"}.get((to, source), "other"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_one_copy_to_a_device_and_one_off_it(accumulate):
    task = task_of(small_model(nn.Dropout(0.3)), accumulate=accumulate)
    x, out = task.initial(), np.empty(task.dimension, np.float32)
    expected = task.update(x, 0, 1)
    staging = Staging(torch.device("cpu"), task.dimension, torch.float32, apart=True)
    task._ready().model = FlatModel(task._module, torch.device("cpu"), staging=staging)
    with Copies(staging) as copies:
        task.update_into(x, 0, 1, out)
    assert copies.seen == ["to", "off"]
    assert np.array_equal(out, expected)
    assert np.array_equal(flat(task.module(x + 1)), x + 1)


def test_batches_are_moved_with_all_that_is_in_them():
    here, there = torch.ones(3), torch.device("meta")

    class Encoding:
        def to(self, device):
            return device

    value = {"a": here, "b": [here, ("text", 3)], "c": Encoding()}
    result = devices.moved(value, there)
    assert result["a"].device == result["b"][0].device == there
    assert result["b"][1] == ("text", 3)
    assert result["c"] == there
    assert devices.moved(value, torch.device("cpu")) is value


# ---------------------------------------------------------------------------------------------- loading threads


class Watched(RowByRow):
    """Remembers which rows were read, and by which threads."""

    def __init__(self, data, length):
        super().__init__(data, length)
        self.read, self.lock = [], threading.Lock()

    def __getitem__(self, row):
        with self.lock:
            self.read.append((row, threading.current_thread().name.startswith("asyncsgd-loader")))
        return super().__getitem__(row)

    def __getstate__(self):
        return {**self.__dict__, "lock": None}


@pytest.mark.parametrize("sampling", ["replacement", "epochs"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_threads_read_the_same_batches_in_the_same_order(sampling, accumulate):
    options = {"sampling": sampling, "accumulate": accumulate, "batch_size": 8}
    alone, threads = (
        asgd.tasks.torch(
            small_model(nn.Dropout(0.2)), nn.CrossEntropyLoss(), RowByRow(digits(), 50), loaders=n, **options
        )
        for n in (0, 3)
    )
    x = alone.initial()
    for batch in (0, 1, 2, 3, 5, 7, 6, 6, 13, 14):
        assert np.array_equal(alone.update(x, 0, batch, batch), threads.update(x, 0, batch, batch))
    assert alone.evaluate(x) == threads.evaluate(x)
    asgd.tasks.check_task(threads)


def test_the_next_batch_of_an_epoch_is_read_ahead():
    data = Watched(digits(), 60)
    loader, rows = Loader(2), DatasetRows(data)
    first, second, third = np.arange(6), np.arange(6, 12), np.arange(12, 15)
    batches = loader.batches(rows, [first, second], then=third)
    next(batches)
    next(batches)
    for part in loader._ahead[2]:
        part.result()  # the rows of the next call are there before it is made
    assert all(threaded for _, threaded in data.read)
    assert {row for row, _ in data.read} == set(range(15))
    before = len(data.read)
    (batch,) = loader.batches(rows, [third])
    assert len(data.read) == before
    assert torch.equal(batch[1], digits().tensors[1][12:15])


def test_a_guess_that_was_wrong_changes_nothing():
    rows, loader = DatasetRows(Watched(digits(), 60)), Loader(2)
    list(loader.batches(rows, [np.arange(3)], then=np.arange(3, 6)))
    waiting: Future = Future()
    loader._ahead = (rows, np.arange(3, 6), [waiting])
    (batch,) = loader.batches(rows, [np.arange(8, 10)])
    assert waiting.cancelled()
    assert torch.equal(batch[1], digits().tensors[1][8:10])


def test_the_next_job_of_a_worker_is_guessed_from_its_last_two():
    task = asgd.tasks.torch(
        small_model(), nn.CrossEntropyLoss(), RowByRow(digits(), 80), sampling="epochs", batch_size=8, loaders=1
    )
    used, part = task._ready(), task._data.rows[0]
    guesses = [task._guess(used, part, worker, batch) for worker, batch in ((0, 0), (1, 1), (0, 2), (0, 4), (1, 3))]
    assert guesses[:2] == [None, None]
    for guess, batch in zip(guesses[2:], (4, 6, 5), strict=True):
        assert np.array_equal(guess, task._sampling.rows(80, 0, False, 0, batch))
    plain = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), RowByRow(digits(), 80), loaders=1)
    assert plain._guess(plain._ready(), plain._data.rows[0], 0, 1) is None


def test_an_error_of_a_row_reaches_the_job():
    class Broken(RowByRow):
        def __getitem__(self, row):
            if row == 40:
                raise OSError("row 40 is gone")
            return super().__getitem__(row)

    data = Broken(digits(), 50)
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), data, sampling="epochs", batch_size=50, loaders=2)
    with pytest.raises(OSError, match="row 40 is gone"):
        task.update(task.initial(), 0, 0, 0)


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_threads_that_share_a_random_generator_are_refused(draw):
    class Noisy(RowByRow):
        def __getitem__(self, row):
            inputs, target = super().__getitem__(row)
            return inputs + draw(), target

    options = {"loss": nn.CrossEntropyLoss(), "data": Noisy(digits(), 50)}
    asgd.tasks.check_task(asgd.tasks.torch(small_model(), **options))
    task = asgd.tasks.torch(small_model(), **options, loaders=2)
    with pytest.raises(BadParameter, match="data = 'Noisy' draws from a random generator that 2 loading threads share"):
        task.update(task.initial(), 0, 0)
