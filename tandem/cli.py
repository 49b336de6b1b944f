"""The `tandem` command. Nothing heavy is imported until a command needs it, so that --help answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from config.roles import DraftSettings, Role, ServeSettings, TargetSettings
from config.settings import SettingsError, UnusableFile, load, unknown_variables
from config.variables import API_KEY_VARIABLE
from tandem import __version__
from tandem.lifeline import hold_on, is_child
from tandem.options import ConfigFile, flags_of, with_flags
from tandem.up_flags import MODEL_FLAGS, UP_FLAGS, settings_for_up

S = TypeVar("S", bound=BaseModel)

app = typer.Typer(
    name="tandem",
    help="Speculative decoding as a service: draft on one machine, verify on another, the target model's own text.\n\n"
    "Settings come from flags, then TANDEM_… variables, then a YAML file (--config or TANDEM_CONFIG).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; wrong settings end with code 2 and one line each."""
    if is_child():  # of `tandem up`, which has warned already
        hold_on()
    else:
        for warning in unknown_variables():
            print(f"tandem: warning: {warning}", file=sys.stderr)
    try:
        app()
    except SettingsError as error:
        for line in str(error).splitlines():
            print(f"tandem: wrong setting: {line}", file=sys.stderr)
        sys.exit(2)


@app.command()
@with_flags(UP_FLAGS)
def up(
    given: dict[str, Any],
    config: ConfigFile = None,
    ready_timeout: Annotated[float, typer.Option(help="Seconds to wait until all three are ready.")] = 1800.0,
    log_dir: Annotated[Path | None, typer.Option(help="Write each process's log to a file in this folder.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the processes' whole logs.")] = False,
) -> None:
    """Start gateway, draft worker and target worker on this machine, and stop all three with Ctrl-C.

    --target and --draft take the bundled model's name, a Hugging Face id, a local folder or a GGUF file. A target
    alone picks its draft and γ if the pair is a known one, prompt lookup otherwise.
    """
    settings = settings_for_up(given, config)
    from tandem.up import run_up

    sys.exit(run_up(settings, config=config, ready_timeout=ready_timeout, log_dir=log_dir, verbose=verbose))


@app.command()
@with_flags(flags_of("serve", ServeSettings, {}))
def serve(given: dict[str, Any], config: ConfigFile = None) -> None:
    """Start the gateway: the OpenAI-compatible API in front of a target worker and, if there is one, a draft worker."""
    settings = _settings("serve", ServeSettings, given, config)
    from tandem.services import run_gateway

    try:
        run_gateway(settings)
    except UnusableFile as fault:
        origins = load("serve", ServeSettings, flags=given, file=config).origins
        raise SettingsError(f"{origins.get(fault.setting, fault.setting)}: {fault}") from None


@app.command()
@with_flags(flags_of("draft", DraftSettings, {"model": ("--draft",)}))
def draft(given: dict[str, Any], config: ConfigFile = None) -> None:
    """Start a draft worker: it proposes tokens, from a small model or by prompt lookup (`--model lookup`)."""
    settings = _settings("draft", DraftSettings, given, config)
    from tandem.services import run_draft_worker

    run_draft_worker(settings)


@app.command()
@with_flags(flags_of("target", TargetSettings, {"model": ("--target",)}))
def target(given: dict[str, Any], config: ConfigFile = None) -> None:
    """Start a target worker: it verifies drafts, and its model's text is what comes out."""
    settings = _settings("target", TargetSettings, given, config)
    from tandem.services import run_target_worker

    run_target_worker(settings)


@app.command()
def doctor(
    config: ConfigFile = None,
    url: Annotated[str | None, typer.Option(help="Gateway; default: the address in the settings.")] = None,
    target_url: Annotated[str | None, typer.Option(help="Target worker; by default the gateway's first.")] = None,
    draft_url: Annotated[str | None, typer.Option(help="Draft worker; by default the gateway's first.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key for the gateway; by default the first that is configured.")
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, max=32, help="γ to try; by default the gateway's own.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=8, max=512, help="Tokens to generate for each prompt.")] = 48,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that any one check may take.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Examine a running set-up: vocabulary, round trips, step times, acceptance, and whether speculation pays."""
    settings = _settings("serve", ServeSettings, {}, config)
    from tandem.doctor import run_doctor

    sys.exit(
        run_doctor(
            settings,
            url=url,
            target_url=target_url,
            draft_url=draft_url,
            api_key=api_key,
            draft_tokens=draft_tokens,
            max_tokens=max_tokens,
            timeout=timeout,
            as_json=as_json,
        )
    )


@app.command()
def chat(
    config: ConfigFile = None,
    url: Annotated[str | None, typer.Option(help="Gateway; default: the address in the settings.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Key for the gateway; better in the variable TANDEM_API_KEY; default: the first configured."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The served model's name; by default its first.")] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour accepted drafts, the target's own tokens and bonus tokens.")
    ] = False,
) -> None:
    """Chat in the terminal with a running Tandem, and see what speculation does (docs/chat.md)."""
    settings = _settings("serve", ServeSettings, {}, config)
    from tandem.addresses import service_url
    from tandem.chat.chat import run_chat

    configured = next((key.get_secret_value() for key in settings.api_keys), None)
    key = api_key or os.environ.get(API_KEY_VARIABLE) or configured
    address = url or service_url(settings.host, settings.port)
    sys.exit(run_chat(address, api_key=key, model=model, system=system, show_drafts=show_drafts))


@app.command()
@with_flags(MODEL_FLAGS)
def bench(
    given: dict[str, Any],
    context: typer.Context,
    config: ConfigFile = None,
    url: Annotated[str | None, typer.Option(help="A running Tandem; by default one is started.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Its key; better in the variable TANDEM_API_KEY.")] = None,
    model: Annotated[str, typer.Option(help="The model's name there; by default its first.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A small run that is done within two minutes.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Compare two results, measure nothing.", metavar="A.json B.json"),
    ] = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="A,B,… of built-in, chat, code, editing, humaneval, gsm8k, mt-bench, spec-bench, "
            "hf:OWNER/NAME[:FILE], FILE.jsonl, NAME=FILE."
        ),
    ] = "built-in",
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each source, spread over all of it.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Files hold text to go on from, not what a user says.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, max=32768, help="Longest answer.")] = 128,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Every answer is that long.")] = False,
    drafters: Annotated[
        str | None, typer.Option(help="A,B,…: auto, lookup, history, a draft model's name; by default all there are.")
    ] = None,
    draft_tokens: Annotated[str, typer.Option(help="γ: numbers, adaptive, or both: adaptive,2,4,8.")] = "adaptive",
    candidates: Annotated[str, typer.Option(help="N: 1,2,4.")] = "1",
    strategies: Annotated[str | None, typer.Option(help="A,B,…; by default the target's own.")] = None,
    temperatures: Annotated[str, typer.Option(help="0,0.7.")] = "0",
    concurrency: Annotated[str | None, typer.Option(help="Requests at a time: 1,4,16.")] = None,
    rates: Annotated[str | None, typer.Option(help="Requests a second, however many run: 0.5,2.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=1000, help="Each with a seed of its own.")] = 1,
    seed: Annotated[int, typer.Option()] = 1,
    also: Annotated[
        list[str] | None, typer.Option(help="NAME=URL of another OpenAI-compatible server (its key: TANDEM_ALSO_KEY).")
    ] = None,
    transformers: Annotated[
        str | None, typer.Option(help="Its own generate, in this process: plain,assistant,lookup.")
    ] = None,
    transformers_model: Annotated[str | None, typer.Option(help="What it loads; default: the target.")] = None,
    assistant_model: Annotated[str | None, typer.Option(help="What drafts for transformers' assistant.")] = None,
    max_minutes: Annotated[float, typer.Option(min=0.01, help="Stop measuring after this long.")] = 60.0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one answer may take.")] = 300.0,
    ready_timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for a Tandem of its own.")] = 1800.0,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench-results"),
    plots: Annotated[bool, typer.Option(help="Draw plots too.")] = True,
) -> None:
    """Measure what speculation brings: plain decoding, each drafter and what else is asked for, side by side.

    Against a running Tandem (--url) or one that it starts (--target, --draft and so on, as in `tandem up`). Prints
    tables, and writes JSON and plots (docs/bench.md).
    """
    from tandem.bench import options as read
    from tandem.bench.command import compare as compare_results
    from tandem.bench.command import run_bench

    if compare is not None:
        sys.exit(compare_results(*compare))
    try:
        if url is not None and given:
            raise read.WrongOption(f"--{next(iter(given)).replace('_', '-')} is for a Tandem of its own, not for --url")
        wanted = read.BenchOptions(
            url=url,
            api_key=api_key,
            model=model,
            up=given,
            config=config,
            prompts=read.texts("--prompts", prompts),
            limit=limit,
            raw=raw,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            drafters=None if drafters is None else read.texts("--drafters", drafters),
            draft_tokens=read.draft_tokens(draft_tokens),
            candidates=read.candidates(candidates),
            strategies=read.strategies(strategies),
            temperatures=read.temperatures(temperatures),
            loads=read.loads(concurrency, rates),
            repetitions=repetitions,
            seed=seed,
            also=read.also(also or []),
            transformers=read.transformers_ways(transformers),
            transformers_model=transformers_model,
            assistant_model=assistant_model,
            max_minutes=max_minutes,
            timeout=timeout,
            ready_timeout=ready_timeout,
            out=out,
            plots=plots,
        )
    except read.WrongOption as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(2)
    if quick:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        on_line = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        wanted = read.quick(wanted, on_line)
    sys.exit(run_bench(wanted))


@app.command("train-draft")
def train_draft(
    target: Annotated[str, typer.Option(help="The model to draft for: a name, a folder, a GGUF file or a hub id.")],
    out: Annotated[Path, typer.Option(help="Folder for the draft; a run that was stopped goes on in it.")],
    data: Annotated[
        Path | None, typer.Option(help="Prompts and texts: .jsonl, .txt, or a folder. None: the target asks itself.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(help="Prompts to measure with; by default some of the data.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the draft.")] = 3,
    vocabulary: Annotated[int, typer.Option(min=0, help="Ids that it can say, the likeliest; 0: all.")] = 8192,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that the target generates to learn from.")] = 20_000_000,
    generate_minutes: Annotated[float | None, typer.Option(min=0, help="Generate for no longer than this.")] = None,
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the texts.")] = 3.0,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Train for no longer than this.")] = None,
    learning_rate: Annotated[float, typer.Option(min=0)] = 2e-3,
    batch_tokens: Annotated[int, typer.Option(min=64, help="Tokens of a batch, for each process.")] = 8192,
    sequences: Annotated[int | None, typer.Option(min=1, help="Answers generated side by side.")] = None,
    length: Annotated[int, typer.Option(min=16, help="Longest text, in tokens.")] = 768,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train a small draft model for a target, from text that the target itself generates (docs/train_a_draft.md)."""
    from tandem.train import run_train_draft

    sys.exit(
        run_train_draft(
            target=target,
            out=out,
            data=data,
            held_out=held_out,
            layers=layers,
            vocabulary=vocabulary or None,
            tokens=tokens,
            generate_minutes=generate_minutes,
            epochs=epochs,
            minutes=minutes,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            sequences=sequences,
            length=length,
            device=device,
            seed=seed,
        )
    )


@app.command("export-draft")
def export_draft(
    draft: Annotated[str, typer.Option(help="A draft that train-draft wrote, or bundled-draft.")],
    out: Annotated[Path, typer.Option(help="Folder for the whole model.")],
    gguf: Annotated[bool, typer.Option(help="Write draft.gguf there too; its target has to be a GGUF file.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a folder with something in it.")] = False,
) -> None:
    """Write a trained draft as a model that vLLM and llama.cpp load (docs/train_a_draft.md)."""
    from tandem.train import run_export_draft

    sys.exit(run_export_draft(draft, out, gguf, overwrite))


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print Tandem's version.")
    ] = False,
) -> None:
    """What may stand before a command."""


@app.command()
def version() -> None:
    """Print Tandem's version."""
    print(f"tandem {__version__}")


def _settings(role: Role, model: type[S], given: Mapping[str, Any], config: Path | None) -> S:
    return load(role, model, flags=given, file=config).settings
