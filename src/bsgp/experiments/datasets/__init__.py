"""The paper's data sets by name, and its folds."""
