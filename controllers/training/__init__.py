"""PPO-Lagrangian training with OmniSafe 0.5.0's settings and results, in numpy, resumable at every epoch."""
