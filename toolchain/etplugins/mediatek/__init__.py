"""MediaTek NeuroPilot: NPUs of Dimensity chips."""
