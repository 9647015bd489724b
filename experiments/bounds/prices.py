"""Prices of certificates: what a number of nominal trials certifies, for each kind of certificate.

Counts are not drawn. They are the quantiles of their laws, so a row is what a typical run would give. Only the noise of
the named disturbance is drawn, with a fixed seed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _shared import records

from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.families import TRUNCATIONS, shifted_failure_upper
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.means import certify_totals
from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.stratified import certify_strata
from ccfs.certificates.trajectory import mu_certified

BLOCK = ProposalSchedule(count=1, sigma=0.2)
TARGET = 0.5
# Shares of the layouts, and how likely a trial succeeds there.
PROFILES = {"differ": ((0.7, 0.98), (0.1, 0.6), (0.2, 0.1)), "alike": ((1.0, 0.8),)}
ROLLOUTS = (512, 2048, 8192)
LAYOUTS = 256
DRAWS_OF_A_LAW = 8
CELLS, GAP, SIZE = 289, 0.0625, 1.0  # a net of 17 x 17 over a box whose corner has the size 1
FAILURES = 0.05
Row = dict[str, object]


def typical_counts(profile: str, layouts: int, draws: int) -> list[int]:
    """Return a typical number of successes for each layout: quantiles of the binomial law."""
    counts: list[int] = []
    for i, (share, chance) in enumerate(PROFILES[profile]):
        last = i == len(PROFILES[profile]) - 1
        number = layouts - len(counts) if last else round(share * layouts)
        levels = (np.arange(number) + 0.5) / number
        counts += [int(value) for value in stats.binom.ppf(levels, draws, chance)]
    return counts


def probability_rows(delta: float) -> Iterator[Row]:
    """Yield the size of shift under which the event keeps one half, by count and by strata."""
    for profile, rollouts in ((profile, rollouts) for profile in PROFILES for rollouts in ROLLOUTS):
        count = sum(typical_counts(profile, rollouts, 1))
        plain = mu_certified(cohort_lower(count, rollouts, delta=delta), TARGET)
        draws = rollouts // LAYOUTS
        found = {"count, one draw at each layout": plain}
        for name, sampling, layouts, number in (
            (f"strata, cohort of {LAYOUTS} layouts", "cohort", LAYOUTS, draws),
            (f"strata, law, {DRAWS_OF_A_LAW} draws at each", "law", rollouts // DRAWS_OF_A_LAW, DRAWS_OF_A_LAW),
        ):
            proof = certify_strata(
                [0] * layouts,
                0,
                typical_counts(profile, layouts, number),
                number,
                delta=delta,
                family=1,
                target=TARGET,
                schedule=BLOCK,
                sampling=sampling,
            )
            found[name] = proof.mu
        for name, mu in found.items():
            yield {"question": f"layouts {profile}", "certificate": name, "trials": rollouts, "value": mu}


def family_rows(delta: float, seed: int) -> Iterator[Row]:
    """Yield the certified probability of an event that the disturbance does not touch, by weights and by Theorem 14."""
    for trials in (1024, 4096, 16384):
        failed = round(FAILURES * trials)
        held = np.arange(trials) >= failed
        noise = np.random.default_rng([seed, trials]).standard_normal(trials)
        cuts = len(TRUNCATIONS)
        share = delta / (cuts * CELLS + 1)
        upper = shifted_failure_upper(
            held, SIZE * noise - SIZE**2 / 2, np.full(trials, SIZE**2), mu=SIZE, delta=cuts * share
        )
        alone = event_lower(cohort_lower(trials - failed, trials, delta=delta), SIZE)
        for name, value in (("family", event_lower(1.0 - upper, GAP)), ("every shift of that size", alone)):
            yield {"question": "disturbance of size 1", "certificate": name, "trials": trials, "value": value}


def total_rows(delta: float) -> Iterator[Row]:
    """Yield the expected total cost, where three quarters of the trials cost nothing and the rest 45 on average."""
    for trials in (256, 1024, 4096):
        paying = trials // 4
        levels = (np.arange(paying) + 0.5) / paying
        costs = np.concatenate([np.zeros(trials - paying), np.minimum(-45.0 * np.log1p(-levels), 500.0)])
        mixed = np.random.default_rng(0).permutation(costs)
        proof = certify_totals(mixed, kind="cost", lowest=0.0, highest=500.0, delta=delta, family=1, sampling="cohort")
        for size in (0.0, 0.5):
            name = f"expected total, mu = {size}"
            yield {"question": "total cost", "certificate": name, "trials": trials, "value": proof.expected(size)}


def compute(seed: int, delta: float) -> records.Table:
    """Return one row per certificate and number of trials. A value that is not certified is NaN."""
    rows = [*probability_rows(delta), *family_rows(delta, seed), *total_rows(delta)]
    values = [math.nan if row["value"] is None else row["value"] for row in rows]
    table = {key: np.asarray([row[key] for row in rows]) for key in ("question", "certificate", "trials")}
    return {**table, "value": np.asarray(values, dtype=np.float64)}


def markdown(rows: records.Table, question: str) -> Iterator[str]:
    """Yield the lines of one table of the page, rounded against us."""
    here = rows["question"] == question
    trials = sorted(set(rows["trials"][here].tolist()))
    names = list(dict.fromkeys(rows["certificate"][here].tolist()))
    text = upper_text if question == "total cost" else lower_text
    yield f"| certificate | {' | '.join(f'{number:,} trials' for number in trials)} |"
    yield "|---" * (len(trials) + 1) + "|"
    for name in names:
        found = [rows["value"][here & (rows["certificate"] == name) & (rows["trials"] == t)][0] for t in trials]
        cells = ["–" if math.isnan(value) else text(float(value), 2) for value in found]
        yield f"| {name} | {' | '.join(cells)} |"
