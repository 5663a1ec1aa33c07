"""Publishes what a build has made, and keeps builds of the same place apart."""
