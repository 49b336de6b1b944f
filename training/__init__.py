"""Training a small draft model for a target: `tandem train-draft`."""
