"""Numerical methods shared by models: conditionals, quadrature, conjugate gradients."""
