"""Which documents stay, and in which order: budgets, the decision for every document, the parts that follow from it."""
