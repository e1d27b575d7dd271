"""Examples that run in a minute or two: `bsgp demo`."""
