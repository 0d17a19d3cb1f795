"""What an engine notes is written down, also when the run is over in the middle of a list of reports."""

from engines.inline import Inline, InlinePool
from run.common import events, train

from asyncsgd.engines.base import Note


class Talks(InlinePool):
    said = 0

    def poll(self, timeout):
        Talks.said += 1
        return [*super().poll(timeout), Note("remark", {"number": self.said}, None)]


def test_nothing_noted_is_lost(tmp_path):
    Talks.said = 0
    run = train(tmp_path / "run", iterations=9, engine=Inline(2, Talks))
    assert run.trace.iterations == 9
    assert [row["number"] for row in events(tmp_path / "run", "remark")] == list(range(1, Talks.said + 1))
