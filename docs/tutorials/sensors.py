# %% [markdown]
# # Sensors
#
# Readings can be wrong too. Give the [sensor stage](../glossary.md#sensor-stage) noise, and the certificate covers wrong readings: what the
# policy, the verifier and the fallbacks read is the true observation plus shift plus noise.
#
# The corridor is a small world whose truth is known. A cart steers sideways, and after ten steps it must not hit the post. It reads its
# position and the number of steps left.

# %%
import ccfs
from ccfs.envs.toys.corridor import Corridor, Steering

schedule = ccfs.Schedule(
    action=ccfs.ProposalSchedule(count=1, sigma=0.1),
    sensor=ccfs.ProposalSchedule(count=1, sigma={"position": 0.1}),
)

# %%
certificate = ccfs.certify_policy(
    Corridor(horizon=10, post=0.8),
    Steering(gain=0.2),
    event=ccfs.GoalBeforeCost(horizon=10),
    schedule=schedule,
    horizon=10,
    trials=500,
    target=0.9,
    delta=0.01,
    seed=2,
)
print(ccfs.in_words(certificate))

# %% [markdown]
# One energy covers both stages. So the certificate answers for each stage alone and for a mixture:

# %%
from ccfs.certificates.rounding import lower_text

for action, sensor in ((0.0, 0.0), (0.05, 0.0), (0.0, 0.05), (0.05, 0.05)):
    print(
        f"commands {action}, readings {sensor}: at least {lower_text(certificate.lower_at(action=action, sensor=sensor))}"
    )

# %% [markdown]
# The number of steps left has no noise, so nothing is claimed if somebody lies about it. The certificate says so among its
# [premises](../glossary.md#premise).
