"""The version of the driver. No step of a build imports it, so a release itself rebuilds nothing."""

VERSION = "0.1.0"
