"""Metrics that say what is served, and the same counts under vLLM's names for clients that know no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from basics.metrics import tandem_version
from server.backend import ServedModel
from server.errors import NoModelYet
from server.metrics import GatewayMetrics

GetModel = Callable[[], ServedModel]


class BuildInfo(Collector):
    """`tandem_build_info`; without a model the labels that describe it are empty."""

    def __init__(self, model: GetModel) -> None:
        self._model = model

    def collect(self) -> Iterable[Metric]:
        served = _served(self._model)
        labels = {"version": tandem_version(), "model": "", "engine": "", "fingerprint": ""}
        if served is not None:
            target = served.target
            labels |= {"model": target.id, "engine": target.engine, "fingerprint": target.fingerprint}
        gauge = GaugeMetricFamily("tandem_build_info", "Always 1", labels=list(labels))
        gauge.add_metric(list(labels.values()), 1)
        return [gauge]


class VllmNames(Collector):
    """`vllm:spec_decode_*`, of all pairs and sources together, once there is a model to name.

    `vllm bench serve` reads these lines from /metrics before and after its run
    (https://docs.vllm.ai/en/latest/design/metrics.html).
    """

    def __init__(self, metrics: GatewayMetrics, model: GetModel) -> None:
        self._metrics = metrics
        self._model = model

    def collect(self) -> Iterable[Metric]:
        served = _served(self._model)
        if served is None:
            return []
        labels = {"model_name": served.names[0], "engine": "0"}
        metrics = self._metrics
        counters = {"num_drafts": metrics.drafts, "num_draft_tokens": metrics.draft_tokens}
        counters["num_accepted_tokens"] = metrics.accepted
        families = []
        for name, counter in counters.items():
            family = CounterMetricFamily(
                f"vllm:spec_decode_{name}", f"See tandem_spec_decode_{name}", labels=list(labels)
            )
            family.add_metric(list(labels.values()), sum(_by(counter, None).values()))
            families.append(family)
        name = "num_accepted_tokens_per_pos"
        family = CounterMetricFamily(
            f"vllm:spec_decode_{name}", f"See tandem_spec_decode_{name}", labels=[*labels, "position"]
        )
        for position, count in sorted(_by(metrics.accepted_per_pos, "position").items(), key=lambda item: int(item[0])):
            family.add_metric([*labels.values(), position], count)
        return [*families, family]


def _served(model: GetModel) -> ServedModel | None:
    try:
        return model()
    except NoModelYet:
        return None


def _by(counter: Counter, label: str | None) -> dict[str, float]:
    """A counter's sums by one label, or its sum under "" if that is None."""
    sums: dict[str, float] = {}
    for family in counter.collect():
        for sample in family.samples:
            key = sample.labels[label] if label is not None else ""
            sums[key] = sums.get(key, 0.0) + sample.value
    return sums
