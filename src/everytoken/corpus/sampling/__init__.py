"""Stratified subsampling: strata, held-out documents, the formulas, the split of each part, the report."""
