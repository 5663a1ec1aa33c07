"""A warm process: it has imported everything, stays for a while after a build, and forks for each later one."""
