"""Reading what a model wrote: thoughts, tool calls, text; and the grammars that make it write so."""
