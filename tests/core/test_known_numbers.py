"""Facts with numbers worked by hand, or by a plain loop that shares nothing with the code."""

import heapq
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from asyncsgd import methods as m
from asyncsgd.core.aggregation import Memory
from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.events import Arrived, Assign, Cancel, Joined, Lost, Outcome
from asyncsgd.core.server import Server


def clocked(server, durations, arrivals, update=lambda point, job: np.zeros_like(point)):
    """A tiny event loop: every worker works on its jobs one after the other; ties go to the older job.

    Returns the ``Ended`` record of every arrival.
    """
    queue, free_at, log = [], dict.fromkeys(range(len(durations)), 0), []

    def work_on(commands, now):
        for command in commands:
            job = command.job
            free_at[job.worker] = max(now, free_at[job.worker]) + durations[job.worker]
            heapq.heappush(queue, (free_at[job.worker], job.id, update(command.point, job)))

    work_on(server.handle(Joined(range(len(durations)))).commands, 0)
    while len(log) < arrivals:
        now, job, g = heapq.heappop(queue)
        reply = server.handle(Arrived(job, g))
        log += reply.ended
        work_on(reply.commands, now)
    return log


def arrive(server, job, *values):
    reply = server.handle(Arrived(job, np.array(values, dtype=float)))
    return reply.commands, reply.ended[0]


def delays(log):
    return [ended.iteration - ended.job.iteration for ended in log]


# ---------------------------------------------------------------------------------- Algorithm 1 and its examples


def gradient(x, seed):
    """A noisy gradient of ½‖x‖², of any seed."""
    return x + np.random.Generator(np.random.Philox(key=seed)).standard_normal(x.shape[0])


@pytest.mark.parametrize(
    "method", [m.async_sgd(0.07), m.minibatch_sgd(0.07), m.federated_async_sgd(0.07, concurrency=1)]
)
def test_one_worker_is_plain_sgd(method):
    x = [1.0, -2.0, 3.0]
    server = Server(np.array(x), method, seed=5)
    log = clocked(server, [1], 200, lambda point, job: gradient(point, job.seed))
    for ended in log:
        g = gradient(np.array(x), ended.job.seed).tolist()
        x = [value - 0.07 * slope for value, slope in zip(x, g, strict=True)]
    assert server.x.tolist() == x
    assert delays(log) == [0] * 200


def test_example_1_is_minibatch_sgd():
    n, eta = 4, 0.1
    server = Server(np.array([1.0, -2.0, 3.0]), m.minibatch_sgd(eta))
    log = clocked(server, [3, 1, 2, 5], 40 * n, lambda point, job: gradient(point, job.seed))
    sequential, batch = [1.0, -2.0, 3.0], np.array([1.0, -2.0, 3.0])
    for round_start in range(0, 40 * n, n):
        round_ = log[round_start : round_start + n]
        assert [ended.job.worker for ended in round_] == [1, 2, 0, 3], "shortest duration first"
        assert delays(round_) == [0, 1, 2, 3]
        point = np.array(sequential)
        for ended in round_:
            g = gradient(point, ended.job.seed).tolist()
            sequential = [value - eta * slope for value, slope in zip(sequential, g, strict=True)]
        batch = batch - n * eta * np.mean([gradient(batch, ended.job.seed) for ended in round_], axis=0)
    assert server.x.tolist() == sequential
    np.testing.assert_allclose(server.x, batch, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_always_busy_with_equal_durations_has_delay_n_minus_1(n):
    server = Server(np.zeros(1), m.async_sgd(0.1))
    log = clocked(server, [1] * n, 10 * n)
    assert delays(log) == [min(t, n - 1) for t in range(10 * n)]
    assert [ended.job.worker for ended in log] == list(range(n)) * 10
    assert {ended.concurrency for ended in log} == {n} == {server.max_concurrency}


# ---------------------------------------------------------------------------------- Theorem 2

ONE_FASTER = [5] * 99 + [1]  # 99 equal workers and one five times faster
LOG_NORMAL = [math.exp(2.5 * z) for z in np.random.Generator(np.random.Philox(key=3)).standard_normal(40)]


def kept(method, durations, arrivals):
    """(share of delays above τ_C, share of the total step that is used, share applied)."""
    log = clocked(Server(np.zeros(1), method), durations, arrivals)
    above = sum(tau > len(durations) for tau in delays(log)) / arrivals
    used = math.fsum(ended.step for ended in log) / arrivals
    return above, used, sum(ended.outcome is Outcome.APPLIED for ended in log) / arrivals


def test_one_faster_worker_puts_95_percent_of_the_delays_above_the_concurrency():
    above, used, applied = kept(m.delay_adaptive(1.0), ONE_FASTER, 20_800)
    assert above == pytest.approx(99 / 104, abs=0.01)
    assert used == pytest.approx(5 / 104 + 99 / 104 * 100 / 103, abs=0.01)
    assert used >= 0.25
    assert applied == 1.0


def test_dropping_at_the_concurrency_throws_nearly_everything_away():
    _, used, applied = kept(m.delay_adaptive(1.0, rule="drop", threshold=100), ONE_FASTER, 20_800)
    assert used == applied == pytest.approx(5 / 104, abs=0.01)


@pytest.mark.parametrize("durations", [ONE_FASTER, LOG_NORMAL], ids=["one faster", "log-normal"])
def test_what_the_safe_rules_keep(durations):
    assert kept(m.delay_adaptive(1.0), durations, 10_000)[1] >= 0.25
    _, used, applied = kept(m.delay_adaptive(1.0, rule="drop"), durations, 10_000)
    assert used == applied >= 0.5


def test_dividing_above_the_concurrency_uses_hardly_anything():
    _, used, _ = kept(m.delay_adaptive(1.0, rule="divide"), ONE_FASTER, 20_800)
    assert used == pytest.approx(5 / 104 + 99 / 104 / 103, abs=0.01)


def test_mishchenko_counts_workers_not_concurrency():
    """n = 4 and τ up to 5 with 6 jobs in flight: η·4/max(4, τ)."""
    server = Server(
        np.zeros(1),
        m.delay_adaptive(1.0, rule="workers").using(dispatch=m.fedasync(concurrency=6).local(1, 1.0).dispatch),
    )
    log = clocked(server, [1, 1, 1, 9], 200)
    assert max(delays(log)) > 4
    assert [ended.step for ended in log] == [4 / max(4, tau) for tau in delays(log)]


# ---------------------------------------------------------------------------------- buffers


def test_fedbuff_by_hand():
    """One worker with six jobs queued at version 0, K = 3, η = 0.3; the weights are 1/√(1+s), the sum over K."""
    server = Server(np.zeros(1), m.fedbuff(0.3, concurrency=6, buffer=3))
    server.handle(Joined([0]))
    steps = [arrive(server, job, 1.0 + job)[1].step for job in range(3)]  # 1, 2, 3 at staleness 0
    assert steps == pytest.approx([0.1, 0.1, 0.1])
    assert server.x[0] == pytest.approx(-0.3 * (1 + 2 + 3) / 3)
    steps = [arrive(server, job, 1.0 + job)[1].step for job in range(3, 6)]  # 4, 5, 6 at staleness 1
    assert steps == pytest.approx([0.1 / math.sqrt(2)] * 3)
    assert server.x[0] == pytest.approx(-0.6 - 0.1 * 15 * 0.7071067811865476)
    # Jobs 6 and 7 left before the first flush, job 8 with it: staleness 2, 2 and 1.
    steps = [arrive(server, job, 10.0)[1].step for job in range(6, 9)]
    assert steps == pytest.approx([0.1 / math.sqrt(3), 0.1 / math.sqrt(3), 0.1 / math.sqrt(2)])
    assert server.x[0] == pytest.approx(-0.6 - 1.0606601717798212 - (2 * 0.5773502691896258 + 0.7071067811865476))
    assert server.version == 3


def test_a_round_of_over_selection_always_has_its_goal():
    """Losing jobs may make a round ask again, but never mixes the updates of two rounds."""
    server = Server(np.zeros(1), m.fedavg(1.0, clients=2, ask=2))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 1.0)
    [again] = server.handle(Lost(1)).commands  # everybody was asked: one is asked again, at the same point
    assert (again.job.version, again.point[0]) == (0, 0.0)
    commands, _ = arrive(server, again.job.id, 10.0)
    assert server.x[0] == -5.5
    assert [command.job.version for command in commands] == [1, 1]
    first, second = (command.job.id for command in commands)
    assert arrive(server, first, 100.0)[0] == ()
    arrive(server, second, 1000.0)
    assert server.x[0] == -5.5 - 550.0


def test_over_selection_asks_a_third_more_and_discards_the_slowest():
    assert (FirstOf(3).asked, FirstOf(3, 5).asked) == (3, 5)
    server = Server(np.zeros(1), m.fedavg(1.0, clients=3, ask=4))
    assigned = server.handle(Joined(range(10))).commands
    assert len({command.job.worker for command in assigned}) == len(assigned) == 4
    for k in (3, 1):
        assert arrive(server, assigned[k].job.id, 6.0)[0] == ()
    commands, _ = arrive(server, assigned[0].job.id, 9.0)
    assert server.x[0] == -7.0
    assert commands[0] == Cancel(assigned[2].job)
    assert [type(command) for command in commands[1:]] == [Assign] * 4


def test_rennala_by_hand():
    """Two workers at x^0, B = 2: the mean of the first two; what was computed at x^0 later is discarded."""
    server = Server(np.zeros(1), m.rennala(0.5, batch=2))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 2.0)  # worker 0 gets job 2, at x^0 again
    arrive(server, 2, 4.0)  # the batch is full: x = -0.5 * 3, worker 0 gets job 3 there
    assert server.x[0] == -1.5
    assert arrive(server, 1, 100.0)[1].outcome is Outcome.DROPPED  # worker 1, computed at x^0
    assert (server.x[0], server.version) == (-1.5, 1)
    arrive(server, 3, 1.0)
    arrive(server, 4, 3.0)
    assert server.x[0] == -2.5


def test_ringmaster_by_hand():
    """R = 2: a gradient one version old is used, one two versions old is not; with stops it never gets that far."""
    server = Server(np.zeros(1), m.ringmaster(1.0, limit=2))
    server.handle(Joined([0, 1, 2]))
    arrive(server, 0, 1.0)  # version 1
    assert arrive(server, 1, 1.0)[1].outcome is Outcome.APPLIED  # staleness 1; version 2
    assert arrive(server, 2, 1.0)[1].outcome is Outcome.DROPPED  # staleness 2
    assert (server.x[0], server.version, server.iteration) == (-2.0, 2, 3)
    server = Server(np.zeros(1), m.ringmaster(1.0, limit=2, stops=True))
    commands = server.handle(Joined([0, 1, 2])).commands
    arrive(server, 0, 1.0)
    stopped, *assigned = arrive(server, 1, 1.0)[0]
    assert stopped == Cancel(commands[2].job)
    assert [(command.job.worker, command.job.version) for command in assigned] == [(1, 2), (2, 2)]


# ---------------------------------------------------------------------------------- FedAsync


def queued(method, jobs):
    """One worker with ``jobs`` jobs queued at x = 0, so that arrival k has staleness k."""
    assert method.dispatch.concurrency == jobs
    server = Server(np.zeros(1), method)
    server.handle(Joined([0]))
    return server


def test_fedasync_by_hand():
    """The worker's model is 10 each time, computed from 0: x ← (1-α_t) x + 10 α_t, α_t = 0.6/√(1+s), falling."""
    server = queued(m.fedasync(0.6, concurrency=4).local(1, 0.1), 4)
    x = 0.0
    for s, alpha in enumerate([0.6, 0.6 / math.sqrt(2), 0.6 / math.sqrt(3), 0.3]):
        _, ended = arrive(server, s, 0.0 - 10.0)  # x_start - x_end
        assert ended.step == pytest.approx(alpha, rel=1e-15)
        x = (1 - alpha) * x + alpha * 10.0
        assert server.x[0] == pytest.approx(x, rel=1e-14)


def test_the_hinge_of_fedasync_at_6_and_7():
    server = queued(m.fedasync(0.6, concurrency=9, weighting="hinge").local(1, 0.1), 9)
    steps = [arrive(server, s, -1.0)[1].step for s in range(9)]
    assert steps[:7] == [0.6] * 7
    assert steps[7:] == pytest.approx([0.6 / 11, 0.6 / 21], rel=1e-15)


def test_constant_weights_of_fedasync_with_alpha_1_take_the_workers_model():
    server = queued(m.fedasync(1.0, concurrency=3, weighting="constant").local(1, 0.1), 3)
    for job, model in enumerate([4.0, -2.0, 8.0]):
        arrive(server, job, 0.0 - model)
        assert server.x[0] == model


# ---------------------------------------------------------------------------------- one by one, by hand


def test_adadelay_by_hand():
    """L = 2, c = 3; t from 1. Two workers: delays 0, 1, 1."""
    server = Server(np.zeros(1), m.adadelay(smoothness=2.0, c=3.0))
    server.handle(Joined([0, 1]))
    steps = [arrive(server, job, 1.0)[1].step for job in range(3)]
    assert steps == pytest.approx([1 / (2 + 3 * math.sqrt(k)) for k in (1 + 0, 2 + 1, 3 + 1)], rel=1e-15)
    versions = [-steps[0], -steps[0] - steps[1], -sum(steps)]
    assert server.x[0] == pytest.approx(versions[-1])
    assert server.output[0] == pytest.approx(sum(versions) / 3)


def test_adadelay_per_coordinate_by_hand():
    """L = 1, updates (1, 2) and (3, 0) with delays 0 and 1: c_1² = (1 + 2/3·9)/2, c_2² = (4 + 0)/2."""
    server = Server(np.zeros(2), m.adadelay(smoothness=1.0, coordinates=True))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 1.0, 2.0)
    assert server.x == pytest.approx([-1 / (1 + 1), -2 / (1 + 2)])
    arrive(server, 1, 3.0, 0.0)
    assert server.x == pytest.approx([-0.5 - 3 / (1 + math.sqrt(3.5) * math.sqrt(3)), -2 / 3])


def test_dc_asgd_by_hand():
    """x = -0.1·2 after one arrival; then g = 3 computed at 0: d = 3 + 0.04·9·(-0.2 - 0)."""
    server = Server(np.zeros(1), m.dc_asgd(0.1))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 2.0)
    assert server.x[0] == pytest.approx(-0.2)
    arrive(server, 1, 3.0)
    assert server.x[0] == pytest.approx(-0.2 - 0.1 * (3 - 0.04 * 9 * 0.2))
    server = Server(np.zeros(1), m.dc_asgd(0.1, adaptive=True))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 2.0)
    arrive(server, 1, 3.0)
    mean_square = 0.95 * (0.05 * 4) + 0.05 * 9
    assert server.x[0] == pytest.approx(-0.2 - 0.1 * (3 - 2 / math.sqrt(mean_square + 1e-7) * 9 * 0.2))


def test_staleness_aware_by_hand():
    """5 workers in 2 splits: c = 2. η = 1; the third and fourth gradient are one version old, the fifth two."""
    server = Server(np.zeros(1), m.staleness_aware(1.0, splits=2).bind(5))
    server.handle(Joined(range(5)))
    steps = [arrive(server, job, 1.0)[1].step for job in range(5)]
    assert steps == [0.5, 0.5, 0.5, 0.5, 0.25]
    assert (server.x[0], server.version) == (-2.0, 2)


def test_picky_sgd_by_hand():
    """Threshold 5: after a move by exactly (3, 4) an old gradient is used, after a bit more it is not."""
    for move, outcome in [((3.0, 4.0), Outcome.APPLIED), ((3.0, 4.001), Outcome.DROPPED)]:
        server = Server(np.zeros(2), m.picky_sgd(1.0, threshold=5.0))
        server.handle(Joined([0, 1]))
        arrive(server, 0, *move)
        assert arrive(server, 1, 1.0, 1.0)[1].outcome is outcome


def naive_average(ws, alphas):
    return math.fsum(a * w for a, w in zip(alphas, ws, strict=True)) / math.fsum(alphas)


@pytest.mark.parametrize("weights", ["uniform", "linear"])
def test_the_delayed_average_is_the_weighted_mean(weights):
    server = Server(np.array([2.0]), m.delayed_average(0.01, weights=weights))
    random = np.random.Generator(np.random.Philox(key=1))
    alpha = (lambda t: t + 1.0) if weights == "linear" else (lambda t: 1.0)
    ws, updates = [2.0], {}
    log = clocked(server, [1, 2, 7], 300, lambda x, job: updates.setdefault(job.id, random.standard_normal(1)))
    for ended in log:
        ws.append(ws[-1] - 0.01 * alpha(ended.job.iteration) * float(updates[ended.job.id][0]))
    assert server.x[0] == pytest.approx(naive_average(ws, [alpha(t) for t in range(301)]), rel=1e-12)


def test_adadelays_answer_is_the_mean_of_all_versions_after_the_start():
    server = Server(np.array([2.0]), m.adadelay(smoothness=1.0))
    versions = []

    def update(point, job):
        versions.append(float(server.x[0]))
        return np.array([math.sin(job.id)])

    log = clocked(server, [1], 300, update)
    assert len(log) == len(versions) - 1 == 300
    assert server.output[0] == pytest.approx(math.fsum(versions[1:]) / 300, rel=1e-12)


def test_mifas_running_sum_stays_a_mean():
    """The sum is kept by differences; after 10^4 arrivals of 20 workers it is still the mean of the last ones."""
    memory, random = Memory(), np.random.Generator(np.random.Philox(key=2))
    state, last = memory.init(np.zeros(6), 0), {}
    for _ in range(10_000):
        worker, g = int(random.integers(20)), random.standard_normal(6)
        last[worker] = g.tolist()
        move = memory.add(state, g, 0.5, 1.0, SimpleNamespace(worker=worker, workers=20, present=range(20)))
    direction, step = move
    assert len(last) == 20
    mean = [math.fsum(column) / 20 for column in zip(*last.values(), strict=True)]
    np.testing.assert_allclose(step * direction, 0.5 * np.array(mean), rtol=0, atol=1e-12)


def test_mifa_waits_for_everybody():
    server = Server(np.zeros(1), m.mifa(1.0))
    server.handle(Joined([0, 1]))
    arrive(server, 0, 4.0)  # worker 0; its next job is number 2
    arrive(server, 2, 6.0)  # worker 0 again: G_0 = 6
    assert (server.x[0], server.version) == (0.0, 0)
    arrive(server, 1, 2.0)
    assert server.x[0] == -4.0
    arrive(server, 3, 0.0)  # worker 0: G_0 = 0
    assert server.x[0] == -5.0


# ---------------------------------------------------------------------------------- noise


def test_noise_has_the_stated_size():
    """Zero updates, K = 4, z = 1.5, G = 2: each flush moves every coordinate by η/K · N(0, (zG)²)."""
    dim, flushes, eta = 400, 100, 0.5
    server = Server(np.zeros(dim), m.fedbuff(eta, concurrency=4, buffer=4).clipped(2.0, noise=1.5), seed=9)
    server.handle(Joined([0]))
    points = [server.x.copy()]
    for job in range(4 * flushes):
        arrive(server, job, *[0.0] * dim)
        if server.version == len(points):
            points.append(server.x.copy())
    moves = np.array([after - before for before, after in pairwise(points)])
    assert moves.shape == (flushes, dim)
    expected, samples = eta * 1.5 * 2.0 / 4, moves.size
    assert moves.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * samples))
    assert abs(moves.mean()) < 5 * expected / math.sqrt(samples)
    neighbours = np.corrcoef(moves[:-1].ravel(), moves[1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(samples), "two flushes must not share their noise"
