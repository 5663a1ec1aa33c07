"""Methods that change their module when they run: what they assign is kept in the program, or refused."""
