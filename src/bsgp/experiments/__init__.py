"""The paper's experiments: data sets, kinds of runs, the engine that does them, figures and tables."""
