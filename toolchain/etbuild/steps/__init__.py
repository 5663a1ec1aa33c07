"""The steps of a build. Each reads files and writes files, so that each can be cached and run by itself.

exporting   what the methods compute, without weights      sources, example inputs       torch
lowering    the program and its named data; it can be      an export, weights            torch, ExecuTorch
            split into one step for each method, and one
            that merges them
reporting   the report and the index; the checks           the facts of a lowering       neither
"""
