"""What the server and the user are told about a job that has no update."""

from __future__ import annotations

from asyncsgd.core.events import Lost
from asyncsgd.engines.base import Failed, Rejected
from asyncsgd.flower.known_mods import advice
from asyncsgd.flower.round_rules import ClientName
from asyncsgd.flower.sender import EXPIRED, UNDELIVERED, ClientMessage, ErrorReply, Outcome, Refused, meaning


def failure(
    message: ClientMessage, outcome: Outcome, who: ClientName, *, undecoded: bool
) -> tuple[Lost | Rejected | Failed, str]:
    """Return the report of a job without an update, and the reason.

    ``undecoded``: the model was sent compressed, and no reply of this client shows that it can decode one.
    """
    job, worker = message.number, message.worker
    match outcome:
        case Refused(reason=why):
            return Rejected(job, worker, why), why
        case ErrorReply(code=code, reason=why) if code in EXPIRED:
            late = f"{who} did not answer job {job} in {message.timeout:g} s"
            return Lost(job), f"job {job} did not reach {who}: {why}" if code == UNDELIVERED else late
        case ErrorReply(code=code, reason=why):
            why += advice(why, compressed=undecoded)
            return Failed(job, worker, f"{meaning(code)}: {why}"), why
    raise AssertionError(outcome)
