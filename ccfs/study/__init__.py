"""Before and after a run: plan its trials, tune its settings, compare arms, look at what is there."""
