"""Training in numpy with the settings and results of OmniSafe 0.5.0, resumable at every epoch."""
