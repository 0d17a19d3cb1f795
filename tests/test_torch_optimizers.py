"""Optimizers of torch on the server: the same as a plain torch loop, and nothing is lost by saving."""

import copy
import pickle
import warnings

import cloudpickle
import numpy as np
import pytest
import torch

import asyncsgd as asgd
from asyncsgd.core import optimizers
from asyncsgd.run import checkpoints
from asyncsgd.torch_optimizers import TorchOptimizer

KINDS = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "foreach": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "fused": True}),
    ("Adam", {}),
    ("AdamW", {"amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1, "fused": True}),
    ("Adagrad", {"initial_accumulator_value": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adadelta", {}),
    ("Adafactor", {}),
]
names = [f"{kind}-{'-'.join(options)}" for kind, options in KINDS]


def gradients(dtype, size, number):
    random = np.random.default_rng(3)
    return [random.standard_normal(size).astype(dtype) for _ in range(number)]


def walk(part, state, x, some, steps, *, in_place=False):
    """The models after each step, given alternating buffers as a server does."""
    buffers = [x.copy(), np.empty_like(x)]
    for k, (d, step) in enumerate(zip(some, steps, strict=True)):
        now, free = buffers[k % 2], buffers[(k + 1) % 2]
        out = now if in_place else free
        source, kept = now.view(), d.copy()
        source.flags.writeable = d.flags.writeable = False
        part.step(state, source, d, step, out, None)
        assert np.array_equal(d, kept)
        buffers[(k + 1) % 2] = out
        buffers[k % 2] = free if in_place else now
    return buffers[len(some) % 2]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=names)
def test_it_is_a_plain_torch_loop_to_the_bit(kind, options, dtype, in_place):
    x = np.linspace(-1, 1, 37).astype(dtype)
    some, steps = gradients(dtype, 37, 12), [0.1 / (1 + k % 3) for k in range(12)]
    parameter = torch.nn.Parameter(torch.tensor(x))
    loop = getattr(torch.optim, kind)([parameter], **options)
    for d, step in zip(some, steps, strict=True):
        parameter.grad = torch.tensor(d)
        loop.param_groups[0]["lr"] = step
        loop.step()
    part = asgd.optimizers.torch(kind, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = walk(part, part.init(x), x, some, steps, in_place=in_place)
    assert end.dtype == dtype
    assert end.tobytes() == parameter.detach().numpy().tobytes()


@pytest.mark.parametrize("cut", [0, 1, 5])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=names)
def test_saved_in_the_middle_it_goes_on_to_the_bit(kind, options, cut):
    x = np.linspace(-1, 1, 37).astype(np.float32)
    some, steps = gradients(np.float32, 37, 12), [0.1 / (1 + k % 3) for k in range(12)]
    part = asgd.optimizers.torch(torch.optim.__dict__[kind], **options)
    whole = walk(part, part.init(x), x, some, steps)
    state = part.init(x)
    keys = list(state)
    half = walk(part, state, x, some[:cut], steps[:cut])
    assert list(state) == keys
    arrays, text = checkpoints.pack({"memory": state, "x": half})
    arrays = {name: array.copy() for name, array in arrays.items()}
    twin = copy.deepcopy(state)
    walk(part, state, half, some[:3], steps[:3])  # goes on somewhere else; what was saved must not notice
    restored = checkpoints.unpack(arrays, text)
    assert list(restored["memory"]) == keys
    end = walk(pickle.loads(pickle.dumps(part)), restored["memory"], restored["x"], some[cut:], steps[cut:])
    assert end.tobytes() == whole.tobytes()
    end = walk(part, twin, half, some[cut:], steps[cut:])
    assert end.tobytes() == whole.tobytes()


def test_two_runs_with_one_optimizer_do_not_mix():
    part = asgd.optimizers.torch("Adam")
    x, some = np.ones(5), gradients(np.float64, 5, 6)
    alone = walk(part, part.init(x), x, some, [0.1] * 6)
    first, second = part.init(x), part.init(x)
    here, there = x.copy(), x.copy()
    for d in some:
        here = walk(part, first, here, [d], [0.1])
        there = walk(part, second, there, [-d], [0.2])
    assert here.tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (optimizers.SGD(), ("SGD", {})),
        (optimizers.Momentum(0.9), ("SGD", {"momentum": 0.9})),
        (optimizers.Momentum(0.9, nesterov=True), ("SGD", {"momentum": 0.9, "nesterov": True})),
        (optimizers.Adam(), ("Adam", {})),
    ],
)
def test_the_core_has_the_same_formulas(mine, theirs):
    x, some = np.linspace(-1, 1, 50), gradients(np.float64, 50, 30)
    part = asgd.optimizers.torch(theirs[0], **theirs[1])
    ends = [walk(one, one.init(x), x, some, [0.05] * 30) for one in (mine, part)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-11, atol=1e-12)


LAYOUT = (("embed.weight", 0, (3, 4)), ("weight", 12, (4, 5)), ("bias", 32, (5,)), ("norm.weight", 37, (7,)))
EXCLUDED = ("bias", "norm*", "embed")


def groups_of(x, options):
    """The parameters of the layout, and a plain torch optimizer over them in two groups."""
    parts = {name: torch.nn.Parameter(torch.tensor(x[at : at + np.prod(shape)])) for name, at, shape in LAYOUT}
    spared = [part for name, part in parts.items() if name != "weight"]
    groups = [{"params": [parts["weight"]]}, {"params": spared, "weight_decay": 0.0}]
    return list(parts.values()), torch.optim.AdamW(groups, **options)


@pytest.mark.parametrize("exclude", [(), EXCLUDED])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_is_that_of_torch_over_a_hundred_steps(exclude, amsgrad, weight_decay):
    x = np.linspace(-1, 1, 44)
    some, steps = gradients(np.float64, 44, 100), [0.05 / (1 + k % 7) for k in range(100)]
    options = {"weight_decay": weight_decay, "amsgrad": amsgrad}
    part = asgd.optimizers.adamw(**options, exclude=exclude if weight_decay else ()).bind_layout(LAYOUT)
    end = walk(part, part.init(x), x, some, steps)
    parameters, loop = groups_of(x, options)
    if not exclude:
        loop = torch.optim.AdamW(parameters, **options)
    for d, step in zip(some, steps, strict=True):
        for parameter, (_, at, shape) in zip(parameters, LAYOUT, strict=True):
            parameter.grad = torch.tensor(d[at : at + np.prod(shape)])
        for group in loop.param_groups:
            group["lr"] = step
        loop.step()
    np.testing.assert_allclose(end, torch.cat(parameters).detach().numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("cut", [None, 0, 5])
@pytest.mark.parametrize("foreach", [False, True])
def test_excluded_parameters_are_a_group_of_torch_to_the_bit(foreach, cut):
    x = np.linspace(-1, 1, 44).astype(np.float32)
    some = gradients(np.float32, 44, 12)
    options = {"weight_decay": 0.5, "foreach": foreach}
    parameters, loop = groups_of(x, options)
    for d in some:
        for parameter, (_, at, shape) in zip(parameters, LAYOUT, strict=True):
            parameter.grad = torch.tensor(d[at : at + np.prod(shape)])
        for group in loop.param_groups:
            group["lr"] = 0.1
        loop.step()
    part = asgd.optimizers.torch("AdamW", **options, exclude=EXCLUDED).bind_layout(LAYOUT)
    state, here = part.init(x), x
    for k, d in enumerate(some):
        if k == cut:
            part, state = pickle.loads(pickle.dumps((part, state)))
        here = walk(part, state, here, [d], [0.1])
    assert here.tobytes() == torch.cat(parameters).detach().numpy().tobytes()
    assert part.vectors() == 2


def test_exclude_of_torch_is_checked():
    with pytest.raises(asgd.errors.BadParameter, match=r"exclude = 'bis' matches no parameter; .*norm.weight"):
        asgd.optimizers.torch("AdamW", exclude="bis").bind_layout(LAYOUT)
    with pytest.raises(asgd.errors.BadParameter, match="Rprop has no weight_decay"):
        asgd.optimizers.torch("Rprop", exclude="bias")
    with pytest.raises(asgd.errors.BadParameter, match="needs the layout"):
        asgd.Server(np.ones(2), asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.torch("AdamW", exclude="bias")))
    part = asgd.optimizers.torch("SGD", weight_decay=0.1, exclude="bias").bind_layout(LAYOUT)
    assert repr(part) == "torch(SGD, weight_decay=0.1, exclude=('bias',), ((32, 37),))"
    assert part.bind_layout(None) is part


def test_a_server_takes_it_scales_it_and_restores_it():
    task = asgd.tasks.quadratic(dim=10, workers=3)
    method = asgd.delay_adaptive(0.05).using(optimizer=asgd.optimizers.torch("AdamW", weight_decay=0.0))
    speeds = asgd.durations.fixed([1.0, 1.0, 20.0])
    run = asgd.simulate(task, method, speeds, iterations=400)
    assert run.metrics["loss"][-1] < 0.05 * run.metrics["loss"][0]
    assert len(set(run.trace.step.tolist())) > 1
    close = asgd.simulate(task, asgd.delay_adaptive(0.05).using(optimizer=optimizers.Adam()), speeds, iterations=400)
    np.testing.assert_allclose(run.x, close.x, rtol=1e-7)

    server = asgd.Server(task.initial(), method)
    server.handle(asgd.Joined([0, 1]))
    drive(server, task, 3)
    arrays, text = checkpoints.pack(server.state())
    saved = checkpoints.unpack({name: array.copy() for name, array in arrays.items()}, text)
    drive(server, task, 3)
    twin = asgd.Server.restore(saved, method)
    drive(twin, task, 3)
    assert server.x.tobytes() == twin.x.tobytes()


def drive(server, task, number):
    """The oldest job arrives, so many times."""
    for _ in range(number):
        job = server.in_flight[0]
        server.handle(asgd.Arrived(job.id, task.update(server.point(job.id), job.worker, job.seed)))


def test_another_optimizer_does_not_take_over_the_memory():
    method = asgd.async_sgd(0.1)
    adam, amsgrad, nadam = (
        asgd.Server(np.ones(2), method.using(optimizer=asgd.optimizers.torch(kind, **options)))
        for kind, options in (("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}))
    )
    for other in (amsgrad, nadam):
        with pytest.raises(asgd.errors.BadParameter, match="remembers"):
            asgd.Server.restore(adam.state(), other.method)


def test_it_is_a_plain_value():
    part = asgd.optimizers.torch(torch.optim.AdamW, weight_decay=np.float64(0.25), fused=True)
    assert repr(part) == "torch(AdamW, weight_decay=0.25, fused=True)"
    assert part == asgd.optimizers.torch("AdamW", weight_decay=0.25, fused=True)
    assert part != asgd.optimizers.torch("AdamW", weight_decay=0.5, fused=True)
    part.step(part.init(np.ones(2)), np.ones(2), np.ones(2), 0.1, np.ones(2), None)
    for twin in (pickle.loads(pickle.dumps(part)), cloudpickle.loads(cloudpickle.dumps(part)), copy.deepcopy(part)):
        assert twin == part
        assert isinstance(twin, TorchOptimizer)


class Counting(torch.optim.SGD):
    """Keeps a count where no checkpoint finds it."""

    def step(self, closure=None):
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        self.param_groups[0]["dampening"] += 0.01
        super().step()


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("LBFGS", {}, "LBFGS.*closure"),
        ("SparseAdam", {}, "SparseAdam.*dense gradients"),
        ("Muon", {}, "Muon.*needs matrices"),
        ("Rprop", {}, "Rprop.*lr = 0"),
        (Counting, {}, "Counting.*not saved"),
        ("AdamZ", {}, "kind = 'AdamZ' is not an optimizer of torch.optim"),
        ("lr_scheduler", {}, "not an optimizer class"),
        (torch.nn.Linear, {}, "Linear.*not an optimizer class"),
        (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), {}, "pass a class such as"),
        ("AdamW", {"weight": 1}, "weight = 1 is not an option of AdamW.*weight_decay"),
        ("AdamW", {"lr": 0.1}, "lr = 0.1 is the method's step.*stepsize"),
        ("AdamW", {"betas": (2.0, 0.9)}, "AdamW.*Invalid beta"),
    ],
)
def test_what_cannot_work_is_refused_at_once(kind, options, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.optimizers.torch(kind, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adamax"])
@pytest.mark.parametrize("size", [1, 4, 10])
def test_the_first_move_is_the_same_whatever_the_buffer_or_the_memory(kind, size, dtype):
    """These ignore the scale of a gradient: the buffer's mean goes in, and the step is the stepsize."""
    methods = [
        asgd.fedbuff(1e-3, concurrency=12, buffer=size),
        asgd.fedavg(1e-3, clients=size, ask=size),
        asgd.mifa(1e-3),
    ]
    parameter = torch.nn.Parameter(torch.zeros(3))
    plain = getattr(torch.optim, kind)([parameter], lr=1e-3)
    parameter.grad = torch.full((3,), 5.0)
    plain.step()
    for method in methods:
        server = asgd.Server(np.zeros(3, dtype), method.using(optimizer=asgd.optimizers.torch(kind)))
        server.handle(asgd.Joined(range(10)))
        while server.version == 0:
            server.handle(asgd.Arrived(server.in_flight[0].id, np.full(3, 5.0, dtype)))
        assert server.x == pytest.approx(parameter.detach().numpy(), rel=1e-5)
