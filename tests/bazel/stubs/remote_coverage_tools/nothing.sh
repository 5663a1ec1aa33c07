#!/bin/sh
# Stands for the tools that merge what tests have covered.
