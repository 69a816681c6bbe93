"""Plugins that come with the core, through the same entry points as everyone else's."""
