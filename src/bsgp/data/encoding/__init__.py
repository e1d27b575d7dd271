"""Encoding of columns as a matrix of inputs, and of targets as numbers."""
