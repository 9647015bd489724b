# %% [markdown]
# # An OmniSafe agent
#
# OmniSafe trains agents that keep a cost low. Does yours? Here PPO-Lagrangian trains for a moment on `SafetyPointGoal1-v0`, which is far too
# short. What matters is the way from the run folder to a certificate. It needs the extra `omnisafe`, on Python 3.10 or 3.11.

# %%
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import ccfs.envs  # before OmniSafe: it lets Safety-Gymnasium import on Python 3.11

# isort: split
import omnisafe

folder = Path(tempfile.mkdtemp())
settings = {
    "train_cfgs": {"total_steps": 2_000, "vector_env_nums": 1, "torch_threads": 1},
    "algo_cfgs": {"steps_per_epoch": 1_000, "update_iters": 1},
    "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "save_model_freq": 1, "log_dir": str(folder)},
}

# %%
from IPython.utils.capture import capture_output

with capture_output():  # OmniSafe shows a table for each epoch
    omnisafe.Agent("PPOLag", "SafetyPointGoal1-v0", custom_cfgs=settings).learn()
(run,) = {path.parent for path in folder.rglob("config.json")}
print(sorted(path.name for path in (run / "torch_save").iterdir()))

# %% [markdown]
# `as_controller` reads the last epoch without running anything from the file. It freezes the normaliser, which OmniSafe's own evaluation keeps
# on updating. The environment is bit-identical to stock, and faster.

# %%
import ccfs
from ccfs.controllers import as_controller

env = ccfs.envs.make("SafetyPointGoal1-v0")
certificate = ccfs.certify_policy(
    env,
    as_controller(run, env=env),
    event=ccfs.CostAtMost(limit=0.0, horizon=100),
    schedule=ccfs.ProposalSchedule(count=1, sigma=0.2),
    horizon=100,
    trials=60,
    target=0.5,
    delta=0.01,
    seed=0,
    resolution=2.0**-20,
)
print(ccfs.in_words(certificate))

# %% [markdown]
# An agent that hardly moves keeps its cost low, so this certificate says little about a useful one. Certify reaching the goal too
# (`ccfs.GoalBeforeCost(horizon=100)`). [The SafetyPointGoal2 study](../goal2.md) does it for agents with ten million steps.

# %% [markdown]
# ## While it learns
#
# One call before `learn` certifies at regular epochs, through OmniSafe's own logger. So `progress.csv`, TensorBoard and W&B have it. Both
# certificates share `delta`.

# %%
import csv

from ccfs.controllers import certify_omnisafe

with capture_output():
    agent = omnisafe.Agent("PPOLag", "SafetyPointGoal1-v0", custom_cfgs=settings)
    hook = certify_omnisafe(
        agent,
        env,
        times=2,
        event=ccfs.CostAtMost(limit=0.0, horizon=100),
        schedule=ccfs.ProposalSchedule(count=1, sigma=0.2),
        horizon=100,
        trials=60,
        target=0.5,
        delta=0.01,
        seed=1,
        resolution=2.0**-20,
    )
    agent.learn()
with open(Path(agent.agent.logger.log_dir) / "progress.csv", newline="") as file:
    for row in csv.DictReader(file):
        print(row["Train/Epoch"], {key: row[key] for key in row if key.startswith("ccfs/")})
