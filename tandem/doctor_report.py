"""The doctor's report, for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.findings import PromptResult, Report
from tandem.payoff import Payoff

_UNSTEADY = 1.25
"""Beyond this ratio of what was expected and what was measured, times were not those of one and the same machine."""
_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "–"}


def print_report(report: Report) -> None:
    console = Console(highlight=False, soft_wrap=False)
    console.print(_checks(report))
    if report.costs:
        console.print(_times(report))
    if report.prompts:
        console.print(_prompts(report))
    for result in report.prompts:
        if result.drafters:
            console.print(escape(drafters_line(result)))
        if result.kind in report.verdicts:
            console.print(escape(verdict_line(result, report.verdicts[result.kind])))
    for verdict in (report.lookahead, report.flights):
        if verdict:
            console.print(escape(verdict))
    if any(not result.same_text for result in report.prompts):
        console.print(
            "\nA text differed with speculation: outside batch-invariant mode near-ties can fall either way. "
            "TANDEM_BATCH_INVARIANT=1 rules that out; what still differs there is a bug."
        )


def verdict_line(result: PromptResult, verdict: Payoff) -> str:
    """What to expect on one kind of prompt, and what holds it back if that is little or nothing."""
    measured = f", measured {result.speed_up:.2f}×" if result.speed_up else ""
    if not verdict.reasons:
        line = f"{result.kind}: speculation pays, {verdict.speed_up:.2f}× expected{measured}"
    else:
        how = "pays little" if verdict.pays else "will not pay"
        line = f"{result.kind}: speculation {how} here, because " + "; ".join(verdict.reasons)
        line += f" ({verdict.speed_up:.2f}× expected{measured})"
    if result.speed_up and _disagree(result.speed_up, verdict.speed_up):
        line += "; these contradict each other: something else kept the machines busy, measure again"
    elif verdict.best_speed_up > max(1.0, verdict.speed_up * 1.05):
        line += f"; γ {verdict.best_draft_tokens} would give {verdict.best_speed_up:.2f}×"
    return line


def drafters_line(result: PromptResult) -> str:
    """Which drafters the accepted tokens came from, the most useful first."""
    total = max(sum(result.drafters.values()), 1)
    shares = sorted(result.drafters.items(), key=lambda entry: -entry[1])
    return f"{result.kind}: drafts from " + ", ".join(f"{name} ({tokens / total:.0%})" for name, tokens in shares)


def _disagree(measured: float, expected: float) -> bool:
    """Whether one finds that speculation pays and the other that it does not, by more than times vary anyway."""
    return (measured > 1) != (expected > 1) and max(measured, expected) > _UNSTEADY * min(measured, expected)


def _checks(report: Report) -> Table:
    table = Table("", "check", "what was found", title="Set-up", title_justify="left")
    for check in report.checks:
        table.add_row(_MARKS[check.ok], check.name, escape(check.detail))
    return table


def _times(report: Report) -> Table:
    costs = report.costs
    assert costs is not None
    table = Table("what", "ms", title="Times (medians)", title_justify="left")
    for name, milliseconds in report.round_trips_ms.items():
        table.add_row(f"round trip to the {name}, from here", f"{milliseconds:.2f}")
    table.add_row("a draft, whatever its length", f"{costs.draft_call:.2f}")
    table.add_row("each draft token", f"{costs.draft_token:.2f}")
    for rows, milliseconds in costs.steps:
        table.add_row(f"target step of {rows} row{'s' if rows > 1 else ''} (γ {rows - 1})", f"{milliseconds:.2f}")
    return table


def _prompts(report: Report) -> Table:
    table = Table(
        "prompt",
        "accepted",
        "drafted",
        "tok/round",
        "plain",
        "spec.",
        "expected",
        "measured",
        "same",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        title=f"Prompts (γ {report.draft_tokens})",
        title_justify="left",
        caption="accepted: of draft tokens looked at; drafted: rounds with a draft; plain, spec.: tokens a second; "
        "same: the text is the same with speculation as without",
        caption_justify="left",
    )
    for result in report.prompts:
        verdict = report.verdicts.get(result.kind)
        table.add_row(
            result.kind,
            f"{result.acceptance_rate:.0%}",
            f"{result.coverage:.0%}",
            f"{result.acceptance_length:.2f}",
            f"{result.plain:.1f}" if result.plain else "–",
            f"{result.speculative:.1f}" if result.speculative else "–",
            f"{verdict.speed_up:.2f}×" if verdict else "–",
            f"{result.speed_up:.2f}×" if result.speed_up else "–",
            _MARKS[result.same_text],
        )
    return table
