"""Pure functions of tensors: the only home of clamps, tails, series and quadrature."""
