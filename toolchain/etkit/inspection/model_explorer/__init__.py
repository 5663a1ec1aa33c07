"""Shows programs in Google's Model Explorer: `model-explorer net.pte --extensions=etkit.inspection.model_explorer`."""
