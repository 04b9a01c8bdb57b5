"""PyTorch's own databases of operators and modules: cases that nobody here wrote."""
