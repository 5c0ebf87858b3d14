"""The pipelines: what kedro-viz shows, under the same names."""
