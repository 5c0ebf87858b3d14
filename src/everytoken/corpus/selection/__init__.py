"""Which documents stay, and in which order.

`quality` (rules for one document), `duplicates` and `near_duplicates` with `grouping` (equal keys out of core),
`contamination` with `words`, `evaluation_files`, `evaluation_index` and `evaluation_ngrams` (n-grams of evaluations),
`mixture` (budgets and interleaving), `select` (the decision for every document), `selected_parts` and `mixed_parts`
(the parts that follow from it), `report`.
"""
