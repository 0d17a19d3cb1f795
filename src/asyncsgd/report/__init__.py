"""What a run, a plan or an experiment looks like: one self-contained page, and figures for papers."""
