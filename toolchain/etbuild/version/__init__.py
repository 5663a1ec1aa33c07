"""The version of the driver. No step of a build imports it, so that a release rebuilds nothing by itself."""

VERSION = "0.1.0"
