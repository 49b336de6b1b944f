"""`tandem bench`: from its options to tables, a JSON file and plots."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from config.variables import ALSO_KEY_VARIABLE, API_KEY_VARIABLE
from tandem.bench import plots, results, table
from tandem.bench.client import Server
from tandem.bench.errors import BenchError
from tandem.bench.options import BenchOptions, WrongOption, known_drafters
from tandem.bench.own_stack import running_tandem
from tandem.bench.peers import Peer, load_peers
from tandem.bench.plan import Turn, turns
from tandem.bench.prompts import Prompt
from tandem.bench.run import Run
from tandem.bench.sources import load_prompts
from tandem.bench.summary import Row, differing, rows
from tandem.bench.variants import TANDEM, Sweep, variants

QUICK_SECONDS = 95.0
"""When a quick run stops measuring, counted from the command's start; writing takes the rest of its two minutes."""
QUICK_LEAST_SECONDS = 20.0
"""What it measures for all the same, if starting took that long."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_DIFFERENCES = 5
_DRAFTER_SECONDS = 20.0


@dataclass
class _Job:
    """One measurement, and what it has come to, whatever ends it. `began` is time.monotonic() at its start."""

    options: BenchOptions
    console: Console
    began: float
    prompts: Sequence[Prompt] = ()
    run: Run | None = None
    server: dict[str, Any] = field(default_factory=dict)
    complete: bool = False


def run_bench(options: BenchOptions) -> int:
    """Measure, print, write. The exit code: 0; 1 where it could not go on; 2 for a wrong option; 130 if interrupted.

    What was measured until then is printed and written in any case.
    """
    console = Console(stderr=True, highlight=False)
    job = _Job(options, console, time.monotonic())
    code = 0
    try:
        with _interruptible():
            job.prompts = load_prompts(options.prompts, options.limit, raw=options.raw)
            with _tandem(options, console) as (url, key):
                _run(job, url, key)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        code = 130
    except WrongOption as error:
        console.print(f"tandem: {error}", markup=False, soft_wrap=True)
        code = 2
    except BenchError as error:
        console.print(f"tandem: {error}", markup=False, soft_wrap=True)
        code = 1
    if job.run is not None and any(sample.reply is not None for sample in job.run.samples):
        try:
            _report(job, job.run)
        except BenchError as error:
            console.print(f"tandem: {error}", markup=False, soft_wrap=True)
            return code or 1
    return code


@contextmanager
def _interruptible() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; later ones do not disturb the end, which stops the processes."""
    seen = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if not seen:
            seen = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _tandem(options: BenchOptions, console: Console) -> Iterator[tuple[str, str | None]]:
    """The Tandem to measure: the one at --url, or one of our own."""
    key = options.api_key or os.environ.get(API_KEY_VARIABLE)
    if options.url is not None:
        yield options.url, key
        return
    with running_tandem(options.up, options.config, options.ready_timeout, console) as (url, own_key):
        yield url, own_key or key


def _run(job: _Job, url: str, key: str | None) -> None:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        asyncio.run(_measure(job, url, key))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():  # the loop has put the system's in their place
            signal.signal(number, handler)


async def _measure(job: _Job, url: str, key: str | None) -> None:
    options, prompts, console = job.options, job.prompts, job.console
    task = asyncio.current_task()
    assert task is not None
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with AsyncExitStack() as stack:
        servers: dict[str, Server] = {}
        addresses = {TANDEM: url, **options.also}
        for name, address in addresses.items():
            own = name == TANDEM
            server = Server(
                name,
                address,
                key if own else os.environ.get(ALSO_KEY_VARIABLE),
                options.timeout,
                model=options.model if own else "",
            )
            servers[name] = await stack.enter_async_context(server)
            await server.look()
        tandem = servers[TANDEM]
        if not tandem.speaks_tandem:
            raise BenchError(f"{url} is no Tandem: measure it beside one, with --also NAME={url}")
        await _await_drafters(tandem, console)
        job.server = _about(tandem, servers)
        models = await _peers(options, tandem)
        sweep = Sweep(
            known_drafters(tandem.card, options.drafters),
            options.draft_tokens,
            options.candidates,
            options.strategies,
            options.temperatures,
        )
        run = job.run = Run(servers, models, options.max_tokens, options.ignore_eos)
        shortest = min(prompts, key=lambda prompt: sum(map(len, [*prompt.turns, *map(str, prompt.history)])))
        measured = await run.warm_up(variants(sweep, [*options.also, *models]), shortest)
        results.try_folder(options.out)
        for name, words in run.left_out.items():
            console.print(f"left out: {name}: {words}", markup=False, soft_wrap=True)
        wanted = [
            turn
            for turn in turns(measured, options.loads, prompts, options.repetitions, options.seed)
            # What runs in this process takes one request at a time.
            if turn.variant.server not in models or (turn.load.concurrency == 1 and turn.load.rate is None)
        ]
        try:
            async with asyncio.timeout(_seconds_left(job)):
                with _progress(console, len(wanted)) as show:
                    await run.measure(wanted, show)
            job.complete = True
        except TimeoutError:
            limit = "two minutes" if options.quick else f"{options.max_minutes:g} minutes (--max-minutes)"
            console.print(f"Stopped after {limit}: what was measured until then follows.")


async def _await_drafters(tandem: Server, console: Console) -> None:
    """A gateway is ready before it has looked at its draft workers."""
    give_up = time.monotonic() + _DRAFTER_SECONDS
    while not tandem.card.get("drafters"):
        if time.monotonic() > give_up:
            console.print("note: no draft worker is ready there: plain decoding alone is measured")
            return
        await asyncio.sleep(0.2)
        await tandem.look()


def _seconds_left(job: _Job) -> float:
    if job.options.quick:
        return max(QUICK_LEAST_SECONDS, QUICK_SECONDS - (time.monotonic() - job.began))
    return 60 * job.options.max_minutes


async def _peers(options: BenchOptions, tandem: Server) -> dict[str, Peer]:
    if not options.transformers:
        return {}
    target = options.transformers_model or str(options.up.get("target") or tandem.card.get("root") or tandem.model)
    device, dtype = str(options.up.get("device", "auto")), str(options.up.get("dtype", "auto"))
    ways, assistant, ignore_eos = options.transformers, options.assistant_model, options.ignore_eos
    return await asyncio.to_thread(load_peers, ways, target, assistant, dtype, device, ignore_eos)


def _about(tandem: Server, servers: Mapping[str, Server]) -> dict[str, Any]:
    others = {name: {"url": s.url, "model": s.model} for name, s in servers.items() if name != TANDEM}
    return {"url": tandem.url, "model": tandem.model, **tandem.card, "others": others}


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("measuring", total=total)

        def show(turn: Turn) -> None:
            bars.update(bar, advance=1, description=f"{turn.load.name}, {turn.variant.name}")

        yield show


def _report(job: _Job, run: Run) -> None:
    """Tables, file and plots. Raises BenchError."""
    options, console = job.options, job.console
    found = rows(run.samples, run.groups)
    out = table.console()
    table.print_rows(out, found)
    kinds = dict.fromkeys(sample.kind for sample in run.samples)
    table.print_kinds(out, {kind: rows([s for s in run.samples if s.kind == kind], []) for kind in kinds})
    _print_differences(out, run, found)
    about = {"machine": results.machine(), "server": job.server, "options": _written(options)}
    about["left_out"] = run.left_out
    stem = time.strftime("bench-%Y%m%d-%H%M%S")
    path = options.out / f"{stem}.json"
    results.write(path, results.Results(about, job.complete, run.samples, run.groups), found)
    out.print(str(path), soft_wrap=True)
    if options.plots:
        try:
            for plot in plots.draw(options.out, stem, found, run.samples):
                out.print(str(plot), soft_wrap=True)
        except plots.NoPlots as error:
            console.print(f"note: {error}", markup=False, soft_wrap=True)
        except OSError as error:
            raise BenchError(f"plots: {error}") from None


def _print_differences(out: Console, run: Run, found: Sequence[Row]) -> None:
    """Where a text was to be plain decoding's and is not. Of other programs nothing is promised, so nothing is said."""
    lines = []
    for row in found:
        if row.variant.server != TANDEM or row.variant.is_plain:
            continue
        for plain, other in differing(run.samples, row.variant, row.load)[0]:
            assert plain.reply is not None
            assert other.reply is not None
            at = _common(plain.reply.text, other.reply.text)
            lines.append(f"{row.variant.name}, {row.load.name}: {other.prompt} differs from character {at} on")
    for line in lines[:_SHOWN_DIFFERENCES]:
        out.print(line, markup=False, soft_wrap=True)
    if lines:
        out.print(f"{len(lines)} texts differ from plain decoding's: see docs/exactness.md, bitwise mode.")


def _common(one: str, other: str) -> int:
    """How many characters two texts begin alike with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _written(options: BenchOptions) -> dict[str, Any]:
    """The options as they go into the file: without the key."""
    values = {name: getattr(options, name) for name in options.__dataclass_fields__ if name != "api_key"}
    values["loads"] = [load.name for load in options.loads]
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def compare(first: Path, second: Path) -> int:
    """`tandem bench --compare`. The exit code."""
    from tandem.bench.compare import run_compare

    try:
        return run_compare(first, second, table.console())
    except BenchError as error:
        Console(stderr=True, highlight=False).print(f"tandem: {error}", markup=False, soft_wrap=True)
        return 1
