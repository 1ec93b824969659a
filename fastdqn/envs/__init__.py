"""Environments: the only package that imports ale_py and gymnasium."""
