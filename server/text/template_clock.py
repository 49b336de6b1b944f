"""A clock inside compiled templates, so that one that loops without writing anything is stopped too.

Jinja's sandbox bounds a single range, not loops within loops or macros that call themselves twice.
"""

from __future__ import annotations

import time

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.runtime import Context

LIMIT = "seconds_of_computing_end"


class OutOfTime(Exception):
    """The rendering has used up its time."""


class TemplateClock(Extension):
    """Lets a template look at the clock in every turn of a loop and every call of a macro.

    What it compares is the thread's own computing time, in seconds: a busy machine makes no template too slow. The
    rendering's variable `LIMIT` says when its time is up, as `time.thread_time()` counts.
    """

    def look(self, context: Context) -> bool:
        """Always true. Raises OutOfTime."""
        # Not `context[LIMIT]`, which the template itself could set.
        if time.thread_time() > context.parent[LIMIT]:
            raise OutOfTime
        return True

    def wind(self, template: nodes.Template) -> None:
        """Puts the looks at the clock into a parsed template."""
        for loop in template.find_all(nodes.For):
            # A loop's condition is tried for elements that its body never sees.
            if loop.test is not None:
                loop.test = nodes.And(self._look(loop.lineno), loop.test, lineno=loop.lineno)
            loop.body.insert(0, nodes.ExprStmt(self._look(loop.lineno), lineno=loop.lineno))
        macros: list[nodes.Macro | nodes.CallBlock] = [
            *template.find_all(nodes.Macro),
            *template.find_all(nodes.CallBlock),
        ]
        for macro in macros:
            macro.body.insert(0, nodes.ExprStmt(self._look(macro.lineno), lineno=macro.lineno))

    def _look(self, line: int) -> nodes.Expr:
        return self.call_method("look", [nodes.ContextReference()], lineno=line)


def wound(environment: Environment, source: str) -> nodes.Template:
    """`source` parsed, with the clock of `environment` in it. Raises jinja2.TemplateSyntaxError."""
    template = environment.parse(source)
    clock = environment.extensions[TemplateClock.identifier]
    assert isinstance(clock, TemplateClock)
    clock.wind(template)
    return template
