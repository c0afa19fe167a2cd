"""Plans for further shapes, searched in the background.

The first plan of a model is searched while its first step waits. Where another shape occurs later, a plan of a short search serves at once,
within the same limit and with the same bits, and the whole search runs in another thread without the interpreter lock. Its result is that of
a search that the step waits for, so every rank has the same plan in the end.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

from .errors import InfeasibleError

#: Evaluations of the search for the plan that serves until the whole search has ended.
QUICK = 50


class Search:
    """The iteration of a joint graph, whose searches are remembered, and are short while a step waits. Everything else is the iteration's own."""

    def __init__(self, joint, native, background: Background):
        self.joint, self._native, self._background = joint, native, background
        self._found: dict[tuple, object] = {}

    def __getattr__(self, name):
        return getattr(self._native, name)

    def plan(self, limit: int, **options):
        """A schedule within ``limit``; while the background serves, one of a short search if that finds any."""
        return self._search("plan", (limit,), options)

    def smallest(self, **options):
        """The schedule at the smallest limit that a search finds, which has to be known before anything runs."""
        key = "smallest", tuple(sorted(options.items()))
        if key not in self._found:
            self._found[key] = self._native.smallest(**options)
        return self._found[key]

    def _search(self, name, args, options):
        key = name, args, tuple(sorted(options.items()))
        if key not in self._found:
            if self._background.serving and (options.get("evaluations") or QUICK + 1) > QUICK:
                with contextlib.suppress(InfeasibleError):
                    quick = getattr(self._native, name)(*args, **{**options, "evaluations": QUICK})
                    self._background.requests.append((self, name, args, options))
                    return quick
            self.whole(name, args, options)
        found = self._found[key]
        if isinstance(found, str):
            raise InfeasibleError(found)
        return found

    def whole(self, name, args, options) -> None:
        """Runs a search to its end and remembers what it finds, or why nothing was found."""
        try:
            found = getattr(self._native, name)(*args, **options)
        except InfeasibleError as error:
            found = str(error)
        self._found[name, args, tuple(sorted(options.items()))] = found


class Background:
    """The searches of one model that run in the background."""

    def __init__(self, enabled: bool):
        self.enabled = enabled
        #: Whether short searches serve now, and the whole searches that they stand for.
        self.serving = False
        self.requests: list[tuple] = []
        self._running: dict[tuple, Future] = {}
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def serve(self, key: tuple, first: bool):
        """Plans made inside are of short searches, unless it is the ``first`` plan; the whole searches begin afterwards."""
        self.serving, self.requests = self.enabled and not first, []
        try:
            yield
        finally:
            self.serving = False
        if self.requests:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "elbowroom-plan")
            self._running[key] = self._pool.submit(self._finish, self.requests)
            self.requests = []

    @staticmethod
    def _finish(requests) -> None:
        for search, name, args, options in requests:
            search.whole(name, args, options)

    def ready(self, key: tuple) -> bool:
        """Whether the whole searches for a plan have ended since the last question."""
        running = self._running.get(key)
        if running is None or not running.done():
            return False
        del self._running[key]
        return True

    def wait(self) -> None:
        """Waits for all searches."""
        for running in self._running.values():
            running.result()
