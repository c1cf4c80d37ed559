"""Embedded sites: shop, forum, repository host and content manager, generated from fixed seeds."""
