"""Samsung Exynos: NPUs, with the ENN compiler."""
