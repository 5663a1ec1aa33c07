"""Qualcomm AI Engine Direct: Hexagon, Adreno and LPAI processors of Snapdragon chips."""
