"""Questions about finished builds: what differs between two of them, and why."""
