# %% [markdown]
# # A Stable-Baselines3 agent
#
# You have a trained model. Pass it as it is: the live model, its file, or its folder in the RL Zoo. Here we train PPO on CartPole for a few
# seconds, just long enough to have something to certify.

# %%
import gymnasium
import torch
from stable_baselines3 import PPO

import ccfs

torch.set_num_threads(1)
env = gymnasium.make("CartPole-v1")
model = PPO("MlpPolicy", env, n_steps=512, learning_rate=1e-3, seed=3, device="cpu").learn(8_192)

# %% [markdown]
# CartPole's actions are discrete, so the noise goes to the *scores* of the two actions (the logits), and the action with the greatest noisy
# score runs. The event: the pole stays up for 100 steps.

# %%
certificate = ccfs.certify_policy(
    env,
    model,
    event=ccfs.NotTerminated(horizon=100),
    schedule=ccfs.ProposalSchedule(count=1, sigma=1.0),
    horizon=100,
    trials=200,
    target=0.8,
    delta=0.01,
    seed=1,
)
print(ccfs.in_words(certificate))

# %% [markdown]
# The certificate names the model by a digest of its weights. If the model learns on, the digest is another one.

# %%
print(certificate.provenance.parts)

# %% [markdown]
# [Which models are supported](../controllers.md#what-is-supported) is a list that the tests run. `VecNormalize` is applied and frozen, and the
# state of an LSTM is carried.

# %% [markdown]
# ## While it learns
#
# A callback certifies at regular points of the training and after its last update. Its numbers go to the model's own logger, and so to TensorBoard
# and W&B. All three certificates share `delta`, and each has trials of its own.

# %%
from ccfs.controllers import CertifyCallback

callback = CertifyCallback(
    lambda: gymnasium.make("CartPole-v1"),
    times=3,
    event=ccfs.NotTerminated(horizon=100),
    schedule=ccfs.ProposalSchedule(count=1, sigma=1.0),
    horizon=100,
    trials=200,
    target=0.8,
    delta=0.01,
    seed=2,
)
PPO("MlpPolicy", env, n_steps=512, learning_rate=1e-3, seed=3, device="cpu").learn(8_192, callback=callback)
for one in callback.certificates:
    print(one.steps, one.logged)
