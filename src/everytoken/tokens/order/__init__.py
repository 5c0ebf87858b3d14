"""The order in which training reads windows: a pure function of parameters, sizes and the step."""
