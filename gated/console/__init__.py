"""The web page where people decide: a client of the bus like any other, in a process of its own."""
