"""What `tandem up` shows of its processes where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tandem.progress import Progress


def test_a_state_that_lasts_is_told_again() -> None:
    now, said = 100.0, io.StringIO()
    progress = Progress(Console(file=said, width=200), ["target", "draft"], clock=lambda: now)
    with progress:
        for second in range(41):
            now = 100.0 + second
            progress.show("target", "starting" if second < 35 else "loading")
            if second < 3:
                progress.show("draft", "ready", done=True)
    assert said.getvalue().strip().splitlines() == [
        "target   starting",
        "draft    ready",
        "target   starting (15 s so far)",
        "target   starting (30 s so far)",
        "target   loading",
    ]
