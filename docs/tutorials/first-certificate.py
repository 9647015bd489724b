# %% [markdown]
# # First certificate
#
# A car in a valley pushes the way it rolls until it reaches a flag. How much may its commands be disturbed before it no longer gets there?
#
# The policy is a function. The event says what counts as success. The [schedule](../glossary.md#schedule) says how much noise is added to
# each command, and only what the [verifier](../glossary.md#verifier) accepts is executed.

# %%
import gymnasium

import ccfs

env = gymnasium.make("MountainCarContinuous-v0")


def push(observation):
    return [1.0 if observation[1] >= 0.0 else -1.0]


def flag(trace):
    return trace.outcome is ccfs.Outcome.TERMINATED


certificate = ccfs.certify_policy(
    env,
    push,
    event=flag,
    schedule=ccfs.ProposalSchedule(count=4, sigma=0.3, rho=0.9),
    verifier=ccfs.BoxVerifier(low=[-1.0], high=[1.0]),
    horizon=200,
    trials=100,
    target=0.9,
    delta=0.01,
    seed=0,
)
print(ccfs.in_words(certificate))

# %% [markdown]
# The certificate knows its whole curve: how likely the event stays at least, under every causal shift of a given total size.

# %%
from matplotlib import pyplot as plt

budgets = [0.01 * step for step in range(31)]
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(budgets, [certificate.lower_at(budget) for budget in budgets])
axes.axhline(0.9, linestyle=":")
axes.set(xlabel="total size of all shifts", ylabel="certified probability", ylim=(0, 1))
plt.show()

# %% [markdown]
# What it takes for granted is part of it:

# %%
for premise in certificate.premises:
    print("-", premise)

# %% [markdown]
# Next: [a model of Stable-Baselines3](sb3-agent.ipynb), or [what a budget means for a robot](../faq.md#what-does-a-budget-of-012-mean-for-my-robot).
