"""Benchmarks: Penstock beside what people use today, in one run on one machine.

core/   the way of a request through processes, with a model that only adds up its input
"""
