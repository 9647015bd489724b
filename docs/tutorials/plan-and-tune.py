# %% [markdown]
# # Plan and tune
#
# How many trials do you need? Which noise level? Both questions must be answered *before* the certifying run, on other trials.
#
# A plan is a forecast. Suppose that you expect 99 of 100 trials to succeed, and you want a budget of 0.1:

# %%
import ccfs

made = ccfs.plan(
    schedule=ccfs.ProposalSchedule(count=1, sigma=0.2), target=0.9, delta=0.001, bound="cohort", rate=0.99, budget=0.1
)
print(f"{made.needed} trials certify it with probability 0.9.")
made.to_frame()

# %% [markdown]
# More noise buys a larger budget and costs success. `ccfs tune` tries settings on pilot seeds of their own, halves the candidates round by
# round, and writes the protocol for the certifying run with the pilots in `used_before`. Here is a protocol file with a table `[tune]`:

# %%
import tempfile
from pathlib import Path

from ccfs.runs.executors import serial_engine
from ccfs.study.tune import load_tuning, tune

folder = Path(tempfile.mkdtemp())
(folder / "study.toml").write_text("""
name = "steer"
seed = 5
horizon = 6
batch = 64

[trials]
cohort = { first = 0, count = 300 }

[claim]
delta = 0.01
target = 0.6
bound = "cohort"

[environment]
make = "corridor"
arguments = { horizon = 6, post = 0.8 }

[[controllers]]
name = "steering"
make = "steering"

[[schedules]]
name = "one"
action = { count = 1, sigma = 0.2 }

[program]
verifier = { make = "accept-all" }

[[events]]
name = "passes"
event = "goal-before-cost"

[tune]
trials = 40
seeds = { first = 3000000000, count = 400 }
wanted = { event = "passes", rate = 0.8 }

[tune.sweep]
"schedules.one.action.sigma" = [0.05, 0.1, 0.2, 0.4]
""")
record = tune(load_tuning(folder / "study.toml"), folder / "tuned", serial_engine())
record.to_frame()

# %% [markdown]
# The protocol for the certifying run is beside the record:

# %%
print(sorted(path.name for path in (folder / "tuned").iterdir() if path.is_file()))
for line in (folder / "tuned" / "protocol.toml").read_text().split("[environment]")[0].splitlines():
    print(line if len(line) < 110 else f"{line[:110]} ...")

# %% [markdown]
# On the command line these are `ccfs plan`, `ccfs tune study.toml -o tuned` and `ccfs run tuned/protocol.toml -o RUN`.
