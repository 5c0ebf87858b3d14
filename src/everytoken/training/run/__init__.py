"""A training run: the plan, the job, its processes, the session, and the artifact functions."""
