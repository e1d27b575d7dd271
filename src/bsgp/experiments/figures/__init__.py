"""Parts of figures and tables that show our results beside the authors'."""
