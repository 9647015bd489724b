# %% [markdown]
# # A filter that says OK
#
# A safety filter reports its status at every step. Is a run with status OK at every step a safe run?
#
# No. The status says what the filter thinks of itself. In a public toolbox for control barrier functions, one code path threw the safe
# action away and ran the nominal one instead, while the status stayed OK at all of 500 steps
# ([the report and its repair](https://github.com/bardhh/cbfkit/pull/373)). Here we rebuild such a fault, and certify the whole loop instead
# of reading the status.
#
# A cart moves towards a wall at 1. It must stop before. The nominal policy pushes on. The filter is the usual one for this system: a push
# that brings the cart nearer to the wall than a share of the room left is cut down.

# %%
import gymnasium
import numpy as np

import ccfs

STEP, WALL, MARGIN, SHARE = 0.1, 1.0, 0.3, 0.5


class Wall(gymnasium.Env):
    """A cart on a line: x becomes x + 0.1 times the action. Beyond the wall, a step costs 1."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.2, 0.2))
        return np.array([self.x]), {}

    def step(self, action):
        self.x += STEP * float(action[0])
        return np.array([self.x]), 0.0, False, False, {"cost": float(self.x >= WALL)}


def filtered(observation, *, is_bypassed):
    """Return what runs, and the status that the filter reports."""
    nominal = 1.0
    safe = min(nominal, SHARE * (WALL - MARGIN - float(observation[0])) / STEP)
    # The fault: the safe action is there, and the nominal one runs. Nobody changes the status.
    action = nominal if is_bypassed else safe
    return [float(np.clip(action, -1.0, 1.0))], "OK"


# %% [markdown]
# Both filters say OK at every step of a plain simulation:


# %%
def simulated(*, is_bypassed):
    env, statuses, cost = Wall(), [], 0.0
    observation, _ = env.reset(seed=0)
    for _ in range(40):
        action, status = filtered(observation, is_bypassed=is_bypassed)
        observation, _, _, _, info = env.step(action)
        statuses.append(status)
        cost += info["cost"]
    return statuses, cost


working, bypassed = simulated(is_bypassed=False), simulated(is_bypassed=True)
for name, (statuses, cost) in {"working": working, "bypassed": bypassed}.items():
    print(f"{name}: status OK at {statuses.count('OK')} of {len(statuses)} steps, total cost {cost:g}")

# %% [markdown]
# A certificate does not ask the filter. It counts what happened to the environment, for the policy, the filter and everything around them
# together:


# %%
def certified(*, is_bypassed):
    return ccfs.certify_policy(
        Wall,
        lambda observation: filtered(observation, is_bypassed=is_bypassed)[0],
        event=ccfs.CostAtMost(limit=0.0, horizon=40),
        schedule=ccfs.ProposalSchedule(count=1, sigma=0.2),
        horizon=40,
        trials=200,
        target=0.9,
        delta=0.001,
        seed=0,
    )


kept, refused = certified(is_bypassed=False), certified(is_bypassed=True)
print("working: ", ccfs.in_words(kept))
print("bypassed:", ccfs.in_words(refused))

# %% [markdown]
# The working filter has a budget. The bypassed one has none: `budget` is `None`, and the command line would end with exit code 1. No knowledge of
# the fault was needed. The same holds for a wrong sign, a wrong unit or a filter that was never switched on.
