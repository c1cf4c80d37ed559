"""The tasks of the embedded sites: intent templates, each with the plan that carries out its instances."""
