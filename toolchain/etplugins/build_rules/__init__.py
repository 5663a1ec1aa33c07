"""What planning gives to the later actions of a build rule."""
