"""PyTorch's own databases of operators and modules: cases from outside of this project."""
