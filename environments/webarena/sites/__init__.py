"""The embedded sites: a shop, a forum, a repository host and a content manager, with data generated from fixed seeds."""
