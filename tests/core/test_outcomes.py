"""The compact list of outcomes is the same as a byte per job, and stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.core import jobs as module
from asyncsgd.core.events import Outcome
from asyncsgd.core.jobs import Outcomes
from asyncsgd.run.checkpoints import pack, unpack


@given(st.data(), st.integers(1, 5), st.integers(1, 30), st.randoms(use_true_random=False))
def test_it_is_a_byte_per_job(data, chunk, flying, random):
    """Random ends in random order, with tiny chunks: the plain twin is a bytearray."""
    was, module.CHUNK = module.CHUNK, chunk
    try:
        compact, plain = Outcomes(), bytearray()
        active: list[int] = []
        favourite = random.choice([1, 1, 1, 2])
        for _ in range(data.draw(st.integers(0, 400))):
            if active and (len(active) >= flying or random.random() < 0.4):
                # Mostly the oldest; now and then anyone, so that the oldest stays in flight for long.
                job = active.pop(0 if random.random() < 0.8 else random.randrange(len(active)))
                code = favourite if random.random() < 0.8 else random.choice([1, 2, 3, 4, 5])
                compact[job] = plain[job] = code
            else:
                active.append(len(plain))
                compact.append(0)
                plain.append(0)
            if random.random() < 0.05:
                compact = Outcomes.restore(unpack(*pack(compact.state())))
        assert len(compact) == len(plain)
        assert bytes(compact[job] for job in range(len(plain))) == plain
    finally:
        module.CHUNK = was


def grown(jobs: int, code, straggler: bool = False) -> Outcomes:
    outcomes = Outcomes()
    for job in range(jobs):
        outcomes.append(0)
        if job >= 8 and not (straggler and job == 8):
            outcomes[job - 8] = code(job)
    return outcomes


def test_a_long_run_stays_small():
    short, long = (grown(jobs, lambda job: Outcome.APPLIED).nbytes for jobs in (50_000, 500_000))
    assert long <= 3 * module.CHUNK
    assert long <= short + 2 * module.CHUNK


def test_a_job_that_never_ends_costs_no_more_than_a_chunk():
    outcomes = grown(300_000, lambda job: Outcome.APPLIED, straggler=True)
    assert outcomes.nbytes <= 40 * module.CHUNK
    assert outcomes[0] == Outcome.IN_FLIGHT
    outcomes[0] = Outcome.LOST
    assert outcomes[0] == Outcome.LOST
    assert outcomes[1] == Outcome.APPLIED


def test_a_mixture_costs_less_than_a_byte_per_job():
    codes = [Outcome.APPLIED] * 9 + [Outcome.DROPPED]
    assert grown(200_000, lambda job: codes[(job * 7919 >> 3) % 10]).nbytes < 200_000 // 4
