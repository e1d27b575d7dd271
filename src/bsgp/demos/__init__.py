"""Things to see in a minute or two: `bsgp demo`."""
