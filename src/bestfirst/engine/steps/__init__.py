"""Steps: how a model's forward pass is computed on a tree of hypotheses, and which way of doing so runs which model."""
