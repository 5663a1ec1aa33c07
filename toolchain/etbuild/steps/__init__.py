"""The steps of a build. Each reads files and writes files, so each can be cached and run by itself.

step        makes                                          reads                         imports

planning    the plan, and its part for each step           the manifest                  neither
exporting   graphs of the methods, without weights         sources, example inputs       torch
lowering    the program and its named data; can be         an export, weights            torch, ExecuTorch
            split into one step for each method, and one
            that merges them
comparing   that the program computes what its model       the program, the export,      torch, ExecuTorch
            computes                                       sources, weights
reporting   the report and the index; runs the checks      the facts of a lowering       neither
"""
