"""Looks at built programs: as text, as pages, against each other, and where their time goes."""
