"""The draft worker as an engine's step sees it: a connection that is ready, or none.

Whatever may take long happens on threads beside the engine: finding the worker, checking its vocabulary, having it read
prompts, deleting sessions, trying again after failures.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from basics.breaker import Breaker
from engines.vllm.proposer.connection import DraftConnection, ExchangeFailed, NoAnswerInTime
from engines.vllm.proposer.options import ProposerOptions

logger = logging.getLogger("vllm.tandem")

_LOOK_SECONDS = 2.0
_READ_SECONDS = 10.0
_TEND_SECONDS = 0.5
_HELPERS = 4
_MAX_JOBS = 4096

Json = dict[str, Any]
Job = Callable[[], None]


class NotInUse(ExchangeFailed):
    """There is no worker to ask, or it is being left alone: not a failure in itself."""


class DraftWorker:
    """The first of the given workers that is there and speaks the engine's language."""

    def __init__(
        self, options: ProposerOptions, why_not: Callable[[Json], str | None], tend: Callable[[], None] = lambda: None
    ) -> None:
        """`why_not` returns, from a worker's ModelInfo, why it is of no use, None if it can serve.

        `tend` is called every few seconds at least, beside the engine.
        """
        self._urls = list(options.draft_url)
        self._token = options.token.get_secret_value() if options.token is not None else None
        self._ca = str(options.ca) if options.ca is not None else None
        self._why_not = why_not
        self._tend_more = tend
        self._breaker = Breaker(cooldown=0.5, max_cooldown=15.0, lone=True)
        self._said: dict[str, str] = {}
        self._url: str | None = None
        # The connection for drafts, while nobody uses it. Taking and returning one element needs no lock.
        self._idle: deque[DraftConnection] = deque(maxlen=1)
        self._jobs: queue.Queue[Job | None] = queue.Queue(_MAX_JOBS)
        self._wake = threading.Event()
        self._closed = False
        self.stop_token_ids: frozenset[int] = frozenset()
        self.abilities: frozenset[str] = frozenset()
        """Its capabilities that are there or not."""

    def start(self) -> None:
        threading.Thread(target=self._tend, name="tandem-tend", daemon=True).start()
        for number in range(_HELPERS):
            threading.Thread(target=self._help, name=f"tandem-help-{number}", daemon=True).start()

    def close(self) -> None:
        """Does not wait: the threads are daemons, each of whose calls ends by a deadline."""
        self._closed = True
        self._wake.set()
        for _ in range(_HELPERS):
            self._submit(None)

    @property
    def ready(self) -> bool:
        return bool(self._idle)

    def draft(self, questions: list[Json], seconds: float) -> list[Json] | None:
        """An item for each question of `POST /v1/draft/batch`, None if there is no usable answer. Never raises.

        A call that fails costs the connection: its answer may yet arrive, and would be taken for the next one's.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        try:
            items = _batch(connection, questions, seconds)
        except ExchangeFailed as failure:
            connection.close()
            why = " (deadline_ms; by default half of what a step takes)" if isinstance(failure, NoAnswerInTime) else ""
            self._failed(f"{failure}{why}")
            return None
        self._idle.append(connection)
        return items

    def served(self, useful: bool) -> None:
        """Count an answer's outcome: one that holds only errors or garbage is a failure too."""
        if useful:
            self._breaker.success()
        else:
            self._failed("its answer holds no usable draft")

    def read(self, ask: Callable[[float], list[Json]], done: Callable[[list[Json] | None], None]) -> None:
        """Have the worker read contexts (γ = 0), beside the engine.

        There `ask` is called for the questions, with the seconds allowed, and `done` with the items, None for none.
        """

        def job() -> None:
            items = None
            try:
                items = self._beside(lambda connection: _batch(connection, ask(_READ_SECONDS), _READ_SECONDS))
            except NotInUse:
                pass
            except ExchangeFailed as failure:
                self._failed(str(failure))
            finally:
                done(items)

        if not self._submit(job):
            done(None)

    def forget(self, session_ids: list[str]) -> None:
        """Delete sessions, beside the engine."""

        def delete(connection: DraftConnection) -> None:
            for session_id in session_ids:
                connection.exchange("DELETE", f"/v1/sessions/{session_id}", None, _LOOK_SECONDS)

        def job() -> None:
            try:
                self._beside(delete)
            except ExchangeFailed as failure:
                logger.debug("Tandem: sessions were not deleted, and expire: %s", failure)

        self._submit(job)

    def _submit(self, job: Job | None) -> bool:
        """False if the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def _help(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("Tandem: a call beside the engine failed")

    def _beside(self, call: Callable[[DraftConnection], Any]) -> Any:
        """On a connection of its own. Raises ExchangeFailed."""
        url = self._url
        if url is None or self._breaker.open_for:
            raise NotInUse("no draft worker is in use")
        connection = DraftConnection(url, self._token, self._ca, _LOOK_SECONDS)
        try:
            return call(connection)
        finally:
            connection.close()

    def _tend(self) -> None:
        """See to it that a connection is ready for the engine's step, if a worker can serve."""
        while not self._closed:
            try:
                self._tend_more()
                self._drop_unfit()
                if not self._idle and not self._breaker.open_for:
                    self._connect()
            except Exception:
                logger.exception("Tandem: looking after the draft worker failed")
            self._wake.wait(self._breaker.open_for or _TEND_SECONDS)
            self._wake.clear()

    def _drop_unfit(self) -> None:
        """The idle connection, if the worker closed it or is left alone. (None may be idle: a step uses it.)"""
        try:
            connection = self._idle.pop()
        except IndexError:
            return
        if connection.stale or self._breaker.open_for:
            connection.close()
        else:
            self._idle.append(connection)

    def _connect(self) -> None:
        """The first worker that answers and can serve; the failure of all of them counts as one."""
        for url in self._urls:
            try:
                connection, info = self._look(url)
                model, stops = str(info.get("id")), frozenset(info["stop_token_ids"])
                able = info.get("capabilities")
                abilities = frozenset(name for name, has in able.items() if has is True) if able else frozenset()
            except Exception as failure:  # noqa: BLE001 - whatever fails here, the next worker may serve
                self._log_once(url, f"no drafts from {url}: {_first_line(failure)}")
                continue
            self._log_once(url, f"drafts come from {url} ({model})")
            self.stop_token_ids, self.abilities, self._url = stops, abilities, url
            self._idle.append(connection)
            return
        self._breaker.failure()

    def _look(self, url: str) -> tuple[DraftConnection, Json]:
        """A connection to a worker that can serve, and its ModelInfo. Raises whatever goes wrong."""
        connection = DraftConnection(url, self._token, self._ca, _LOOK_SECONDS)
        try:
            info = connection.exchange("GET", "/v1/model", None, _LOOK_SECONDS)
            if (why_not := self._why_not(info)) is not None:
                raise ExchangeFailed(why_not)
            return connection, info
        except BaseException:
            connection.close()
            raise

    def _failed(self, why: str) -> None:
        if self._breaker.failure():
            url = self._url or ""
            self._log_once(url, f"no drafts for a while from {url}, which failed several times in a row: {why}")
        self._wake.set()

    def _log_once(self, url: str, what: str) -> None:
        """Log this once, until there is something else to log about this worker."""
        if self._said.get(url) != what:
            self._said[url] = what
            logger.warning("Tandem: %s", what)


def _batch(connection: DraftConnection, questions: list[Json], seconds: float) -> list[Json]:
    """Raises ExchangeFailed."""
    answer = connection.exchange("POST", "/v1/draft/batch", {"protocol": 1, "items": questions}, seconds)
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) != len(questions):
        raise ExchangeFailed(f"no list of {len(questions)} items")
    return items


def _first_line(failure: Exception) -> str:
    """The exception's text for the log, shortened: libraries' messages may have many lines and end in request ids."""
    text = str(failure).strip().partition("\n")[0]
    return text if isinstance(failure, ExchangeFailed) else f"{type(failure).__name__}: {text}"
