"""Tasks of the embedded sites: intent templates, each with the plans that solve its instances."""
