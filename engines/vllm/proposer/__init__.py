"""Draft tokens for vLLM from a Tandem draft worker: a class for its speculative method `custom_class`."""

from engines.vllm.proposer.proposer import TandemProposer

__all__ = ["TandemProposer"]
