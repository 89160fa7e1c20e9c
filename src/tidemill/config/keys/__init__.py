"""The tables of settings, one module for each subject."""
