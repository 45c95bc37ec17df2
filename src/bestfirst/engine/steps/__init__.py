"""Steps: how a model's forward pass is computed on a tree of hypotheses, and which implementation runs which model."""
