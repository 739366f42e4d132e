"""Whole models end to end: whether what the layer gains arrives in tokens per second, and what explains it.

`command` reads the options, `run` visits models and engines, each engine being a process of its own (`engine_worker`);
`fit` and `analysis` turn samples into intervals, full-depth figures and their explanation, `document` into a file.
"""
