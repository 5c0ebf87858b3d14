"""One optimiser step and what it needs: loss, schedule, precision, distribution, history."""
