"""Corners that reviews have found."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, WrongType
from asyncsgd.core.server import Server


@pytest.mark.parametrize(
    "make",
    [
        lambda number: asgd.async_sgd(number(0.1)).using(optimizer=asgd.optimizers.momentum(number(0.9))),
        lambda number: asgd.async_sgd(number(0.1)).clipped(number(0.7)),
        lambda number: asgd.methods.dc_asgd(number(0.1), strength=number(0.3)),
    ],
)
def test_numpy_scalars_as_parameters_give_the_same_bits(make):
    points = []
    for number in (float, np.float64):
        server = Server(np.ones(3, np.float32), make(number))
        server.handle(asgd.Joined([0, 1]))
        for job in range(6):
            server.handle(asgd.Arrived(job, np.array([0.3, -0.7, 1.1], np.float32)))
        points.append(server.x.tobytes())
    assert points[0] == points[1]


def test_a_buffer_too_small_for_what_was_saved_is_refused():
    method = asgd.fedbuff(0.1, concurrency=3, buffer=5)
    server = Server(np.ones(2), method)
    server.handle(asgd.Joined([0]))
    for job in range(3):
        server.handle(asgd.Arrived(job, np.ones(2)))
    with pytest.raises(BadParameter, match="buffer = 3 is too small for the 3 updates"):
        Server.restore(server.state(), asgd.fedbuff(0.1, concurrency=3, buffer=3))
    assert Server.restore(server.state(), asgd.fedbuff(0.1, concurrency=3, buffer=4)).iteration == 3


def test_masked_arrays_are_refused_and_memory_maps_taken(tmp_path):
    server = Server(np.ones(2), asgd.async_sgd(0.1))
    server.handle(asgd.Joined([0]))
    with pytest.raises(WrongType, match="MaskedArray"):
        server.handle(asgd.Arrived(0, np.ma.masked_invalid([1.0, np.nan])))
    on_disk = np.memmap(tmp_path / "update", dtype=np.float64, mode="w+", shape=2)
    server.handle(asgd.Arrived(0, on_disk))
    assert server.iteration == 1


def test_adadelay_with_coordinates_finds_its_own_c():
    with pytest.raises(BadParameter, match=r"c = 2\.0 has no meaning"):
        asgd.methods.adadelay(smoothness=1.0, c=2.0, coordinates=True)


def test_mifa_waits_for_everybody_who_is_there_and_not_for_a_number():
    server = Server(np.zeros(1), asgd.mifa(1.0))
    first = {command.job.worker: command.job.id for command in server.handle(asgd.Joined([0, 1, 2])).commands}
    server.handle(asgd.Arrived(first[0], np.array([4.0])))
    server.handle(asgd.Left(0))
    server.handle(asgd.Arrived(first[1], np.array([2.0])))
    assert server.version == 0  # two were heard and two are there, but worker 2 was never heard
    server.handle(asgd.Arrived(first[2], np.array([3.0])))
    assert server.x.tolist() == [-3.0]
