"""The paper's experiments, one file each, and what runs them."""
