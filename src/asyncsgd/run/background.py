"""Call one function at a time in a thread of its own, and raise its error in the thread that asks for the result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """At most one call under way. All methods belong to one thread, the owner's; the call has a thread of its own.

    The thread is not a daemon: if the process ends in any other way than by a kill, Python waits for the call first.

    >>> call = BackgroundCall()
    >>> call.start(lambda: 6 * 7)
    >>> call.result(wait=True), call.result(wait=True)
    (42, None)
    """

    def __init__(self) -> None:
        self._under_way: Future[T] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way, or its result was not yet fetched."""
        return self._under_way is not None

    def start(self, function: Callable[[], T]) -> None:
        """Call the function in another thread; the result of the call before must have been fetched."""
        assert self._under_way is None
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        thread = threading.Thread(target=call, name="asyncsgd-checkpoint", daemon=False)
        thread.start()
        self._under_way = result  # only now: a thread that cannot be started would be waited for forever

    def result(self, *, wait: bool) -> T | None:
        """Return the result once, None if there is none (yet), or raise what the function raised."""
        under_way = self._under_way
        if under_way is None or not (wait or under_way.done()):
            return None
        under_way.exception()  # a signal handler may raise here: then the call is still under way
        self._under_way = None
        return under_way.result()

    def wait(self) -> None:
        """Wait for the call under way, whatever it gives; `result` can still fetch that."""
        if self._under_way is not None:
            self._under_way.exception()
