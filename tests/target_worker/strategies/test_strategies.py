"""What every strategy promises on any input, and what it does on plain ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from basics.names import Strategy
from protocol.errors import BadRequest, Unsupported
from protocol.messages import Candidate, TopK
from target_worker.strategies import STRATEGIES, check_candidates, probabilistic
from target_worker.strategies.drafts import Drafts, Target, pad_drafts
from target_worker.strategies.verdicts import decisions, verdicts
from tests.target_worker.strategies.helpers import chain_of, target_of, top

ALL: tuple[Strategy, ...] = ("deterministic", "probabilistic", "threshold", "greedy")


@st.composite
def rounds(draw_: st.DrawFn) -> tuple[Target, Drafts]:
    """A target's rows and drafts over a vocabulary of one to six tokens; drafted tokens come from their q."""
    vocabulary = draw_(st.integers(1, 6))
    logit = st.one_of(st.integers(-3, 3).map(float), st.just(-math.inf))
    row = st.lists(logit, min_size=vocabulary, max_size=vocabulary).filter(lambda r: max(r) > -math.inf)
    lengths = draw_(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    count = max(lengths) + 1
    parameters = draw_(st.sampled_from(({}, {"temperature": 0.0}, {"top_p": 0.6}, {"top_k": 2, "temperature": 0.5})))
    seed = draw_(st.integers(-(2**63), 2**63 - 1))
    target = target_of(draw_(st.lists(row, min_size=count, max_size=count)), seed, **parameters)
    draft = target_of(draw_(st.lists(row, min_size=count, max_size=count)), seed, **parameters)
    q = [[top(draft.distribution, place) for place in range(length)] for length in lengths]
    tokens = [[draw_(st.sampled_from(one.token_ids)) for one in chain] for chain in q]
    return target, chain_of(tokens, q, draw_(st.sampled_from([0.0, 0.1, 0.5, 1.0])))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_lengths_masks_and_support(name: Strategy, case: tuple[Target, Drafts]) -> None:
    target, drafts = case
    outcome = STRATEGIES[name].verify(drafts, target)
    p = target.distribution.logprobs().exp()
    for chain, length in enumerate(drafts.lengths.tolist()):
        accepted = int(outcome.num_accepted[chain])
        assert 0 <= accepted <= length
        emitted = [*drafts.token_ids[chain, :accepted].tolist(), int(outcome.next_token[chain])]
        assert all(p[place, token] > 0 for place, token in enumerate(emitted)), "only what the target can draw"
        alone = chain_alone(drafts, chain)
        single = STRATEGIES[name].verify(alone, target)
        assert int(single.num_accepted[0]) == accepted, "a chain's outcome does not depend on the chains beside it"
        assert single.next_token[0] == outcome.next_token[chain]
        log = decisions(drafts, target, outcome, chain, STRATEGIES[name].rejection)
        assert [entry.accepted for entry in log] == [i < accepted for i in range(length)]
        assert [entry.position for entry in log] == [2 + i for i in range(length)]
        assert all(math.isclose(entry.p, p[place, entry.drafted], abs_tol=1e-12) for place, entry in enumerate(log))
        assert all((entry.q or 0) > 0 for entry in log)
    (verdict,) = verdicts(drafts, target, outcome, [len(drafts.lengths)])
    assert verdict.num_accepted == int(outcome.num_accepted.max())
    assert len(verdict.token_ids) == verdict.num_accepted + 1
    assert verdict.token_ids[:-1] == drafts.token_ids[verdict.candidate, : verdict.num_accepted].tolist()


def chain_alone(drafts: Drafts, chain: int) -> Drafts:
    assert drafts.q is not None
    assert drafts.threshold is not None
    length = int(drafts.lengths[chain])
    q = probabilistic.DraftDistributions(
        drafts.q.token_ids[chain : chain + 1, :length], drafts.q.probabilities[chain : chain + 1, :length]
    )
    tokens, rows = drafts.token_ids[chain, :length].tolist(), drafts.rows[chain, : length + 1].tolist()
    return pad_drafts([tokens], [rows], q=q, threshold=drafts.threshold[chain : chain + 1].tolist())


@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_deterministic_emits_the_targets_own_draws(case: tuple[Target, Drafts]) -> None:
    target, drafts = case
    outcome = STRATEGIES["deterministic"].verify(drafts, target)
    (verdict,) = verdicts(drafts, target, outcome, [len(drafts.lengths)])
    assert verdict.token_ids == target.own[: verdict.num_accepted + 1].tolist()
    for chain, length in enumerate(drafts.lengths.tolist()):
        accepted = int(outcome.num_accepted[chain])
        assert accepted == length or drafts.token_ids[chain, accepted] != target.own[accepted]


@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_greedy_emits_the_top_tokens(case: tuple[Target, Drafts]) -> None:
    target, drafts = case
    (verdict,) = verdicts(drafts, target, STRATEGIES["greedy"].verify(drafts, target), [len(drafts.lengths)])
    assert verdict.token_ids == target.distribution.top1()[: verdict.num_accepted + 1].tolist()


@settings(max_examples=60, deadline=None)
@given(case=rounds())
def test_threshold_accepts_by_probability_alone(case: tuple[Target, Drafts]) -> None:
    target, drafts = case
    assert drafts.threshold is not None
    outcome = STRATEGIES["threshold"].verify(drafts, target)
    p = target.distribution.logprobs().exp()
    for chain, length in enumerate(drafts.lengths.tolist()):
        ids = drafts.token_ids[chain, :length].tolist()
        good = [p[place, t] > 0 and p[place, t] >= drafts.threshold[chain] for place, t in enumerate(ids)]
        accepted = good.index(False) if False in good else length
        assert int(outcome.num_accepted[chain]) == accepted
        assert outcome.next_token[chain] == target.own[accepted]


@pytest.mark.parametrize("name", ALL)
def test_a_perfect_draft_at_temperature_zero_is_accepted_whole(name: Strategy) -> None:
    target = target_of([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [0.0, 0.0, 5.0]], temperature=0.0)
    q = [[top(target.distribution, i) for i in range(2)]]
    outcome = STRATEGIES[name].verify(chain_of([[1, 0]], q), target)
    assert outcome.num_accepted.tolist() == [2]
    assert outcome.next_token.tolist() == [2]


def test_a_lone_token_has_probability_one_exactly() -> None:
    target = target_of([[0.0, 3.0, 1.0]] * 2, temperature=0.0)
    outcome = STRATEGIES["threshold"].verify(chain_of([[1]], threshold=1.0), target)
    assert outcome.num_accepted.tolist() == [1]
    assert target.distribution.probability_of(torch.tensor([1, 0])).tolist() == [1.0, 0.0]


def test_probabilistic_accepts_all_of_an_equal_draft() -> None:
    """p = q: the ratio is one, and no uniform reaches it."""
    for seed in range(50):
        target = target_of([[0.3, 3.0, 1.0, 0.0]] * 4, seed)
        q = [[top(target.distribution, i) for i in range(3)]]
        outcome = STRATEGIES["probabilistic"].verify(chain_of([[0, 1, 3]], q), target)
        assert outcome.num_accepted.tolist() == [3]


def test_a_residual_without_mass_draws_from_p() -> None:
    p = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    assert probabilistic.log_residual(p, p.clone()).exp().tolist() == [[0.25, 0.75, 0.0]]
    q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    assert probabilistic.log_residual(p, q).exp().tolist() == [[0.0, 0.5, 0.0]]


def candidate(ids: list[int], probabilities: list[float], drafted: int = 0) -> Candidate:
    q = TopK(token_ids=ids, logprobs=[math.log(p) if p else -800.0 for p in probabilities])
    return Candidate(token_ids=[drafted], q=[q])


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Candidate(token_ids=[1]), "candidates.0.q"),
        (candidate([0, 1], [0.5, 0.4]), "candidates.0.q.0.logprobs"),
        (candidate([0, 1], [0.7, 0.4]), "candidates.0.q.0.logprobs"),
        (candidate([0, 0], [0.5, 0.5]), "candidates.0.q.0.token_ids"),
        (candidate([0, 9], [0.5, 0.5]), "candidates.0.q.0.token_ids"),
        (candidate([0, 1], [0.5, 0.5], drafted=2), "candidates.0.token_ids.0"),
        (candidate([0, 1], [0.0, 1.0]), "candidates.0.token_ids.0"),
        (Candidate(token_ids=[0], q=[TopK(token_ids=[0], logprobs=[900.0])]), "candidates.0.q.0.logprobs"),
    ],
)
def test_a_q_that_cannot_be_is_refused_by_name(bad: Candidate, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_candidates("probabilistic", [bad], vocabulary=9)
    assert caught.value.field == field


def test_nan_in_q_is_refused() -> None:
    nan = TopK.model_construct(token_ids=[0, 1], logprobs=[math.log(0.5), math.nan])
    with pytest.raises(BadRequest) as caught:
        check_candidates("probabilistic", [Candidate.model_construct(token_ids=[0], q=[nan])], vocabulary=9)
    assert caught.value.field == "candidates.0.q.0.logprobs"


def test_several_candidates_under_probabilistic_are_refused_by_name() -> None:
    good = candidate([0, 1], [0.5, 0.5])
    check_candidates("probabilistic", [good], vocabulary=9)
    check_candidates("deterministic", [Candidate(token_ids=[1]), Candidate(token_ids=[2])], vocabulary=9)
    with pytest.raises(Unsupported, match="num_candidates") as caught:
        check_candidates("probabilistic", [good, good], vocabulary=9)
    assert caught.value.field == "candidates"


def test_rows_and_tokens_must_fit() -> None:
    with pytest.raises(ValueError, match="one more is needed"):
        pad_drafts([[1, 2]], [[0, 1]])
